"""Prompts as tokens, by a model's own tokenizer and chat template, with the code of transformers alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkpoint import Problem, Refused
from checkpoint.errors import require
from fidelity.prompts import Prompt
from fidelity.replies import Ids, Layout, Reply

RUNNING = "running a model here"
EXTRA = "fidelity"


class Layer:
    """A tokenizer, and its chat template unless `raw` or where it has none. `arguments` are the template's."""

    def __init__(self, tokenizer: Any, *, raw: bool, arguments: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        template = None if raw or not tokenizer.chat_template else str(tokenizer.get_chat_template())
        digest = hashlib.sha256(template.encode()).hexdigest() if template else None
        self.layout = Layout("tokenizer" if template else "raw", digest, dict(arguments) if template else {})

    @property
    def end(self) -> int | None:
        end: int | None = self._tokenizer.eos_token_id
        return end

    def prompt_ids(self, prompt: Prompt) -> Ids:
        """The prompt's tokens, up to where the answer begins. Refuses what the template cannot lay out."""
        from jinja2 import TemplateError

        if self.layout.by == "raw":
            return tuple(self._tokenizer(raw_text(prompt))["input_ids"])
        options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": False} | dict(self.layout.arguments)
        try:
            text = self._tokenizer.apply_chat_template(list(prompt.turns), **options)
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            raise Refused(Problem("template-failed", f"the chat template says: {error}", prompt.id)) from error
        return self.ids(text)

    def ids(self, text: str) -> Ids:
        """The tokens of a text, with none put before it."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, ids: Ids) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def ids_of(self, prompt: Prompt, reply: Reply) -> tuple[Ids, Ids]:
        """The tokens that were given and generated, where this tokenizer reads them alike; else the texts' own."""
        before, behind = reply.prompt_ids, reply.ids
        if before is None or behind is None or max((*before, *behind), default=0) >= len(self._tokenizer):
            return self.prompt_ids(prompt), self.ids(reply.text)
        if self.text(behind) != reply.text:
            return self.prompt_ids(prompt), self.ids(reply.text)
        return before, behind


def raw_text(prompt: Prompt) -> str:
    """The text to be continued. Refuses a conversation."""
    if prompt.text is None:
        remedy = "Ask a model that has one, or give prompts that are plain texts"
        raise Refused(Problem("template-absent", "a conversation, but no chat template", prompt.id, remedy=remedy))
    return prompt.text


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder, without the network. Raises MissingExtra, Refused."""
    require(RUNNING, "transformers", "jinja2", extra=EXTRA)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises Exception itself for a file it cannot parse
        raise Refused(Problem("tokenizer-invalid", first_line(error), str(folder))) from error


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
