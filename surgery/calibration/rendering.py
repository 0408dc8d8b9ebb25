"""Conversations as the model itself reads them: its chat template, its tokenizer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from checkpoint import Problem, Refused
from checkpoint.errors import require
from surgery.calibration.reading import Content, Message

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json", "additional_chat_templates/*",
)  # fmt: skip
"""Files that decide which ids a text becomes (transformers 5, `tokenization_utils_base`)."""

Tokenizer = Any
"""A transformers tokenizer, which is untyped here."""


class TemplateFault(Exception):
    """A conversation that the chat template or the tokenizer cannot turn into tokens; says why in their words."""


class _DateWanted(Exception):
    """The template asks for today's date, which the recipe does not give."""


def load_tokenizer(model: Path) -> Tokenizer:
    """The tokenizer in the folder `model`, with the code of transformers alone and without the network.

    Raises MissingExtra where transformers is not installed, Refused where the folder has no tokenizer that it can load.
    """
    require("a chat template", "transformers", "jinja2", extra="gptq")
    if not tokenizer_files(model):
        found = "has no tokenizer" if model.is_dir() else "is not a folder"
        raise Refused(Problem("tokenizer-absent", found, str(model), remedy="Give the base model's folder"))
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(model), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises Exception itself for a file it cannot parse
        expected = "a tokenizer that transformers loads without code of the model's own"
        raise Refused(Problem("tokenizer-invalid", _words(error), str(model), expected=expected)) from error


def tokenizer_files(model: Path) -> dict[str, str]:
    """SHA-256 of every file in the folder `model` that decides which ids a text becomes, by name."""
    paths = sorted(path for pattern in TOKENIZER_FILES for path in model.glob(pattern) if path.is_file())
    return {path.relative_to(model).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


class Renderer:
    """Renders and tokenizes with given template arguments. `day` is told to a template that asks for today."""

    def __init__(self, tokenizer: Tokenizer, arguments: Mapping[str, Any], day: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._arguments = {**arguments, "strftime_now": _clock(day)}

    def ids(self, content: Content) -> list[int]:
        """Token ids of a conversation through the chat template, or of a text and the blank line that sets it apart
        from the next, with what the tokenizer puts around any text. Raises TemplateFault."""
        chat = not isinstance(content, str)
        text = self._render(content) if not isinstance(content, str) else f"{content.rstrip()}\n\n"
        if not text.strip():
            raise TemplateFault("renders to nothing")
        ids: list[int] = self._tokenizer(text, add_special_tokens=not chat, verbose=False)["input_ids"]
        if not ids:
            raise TemplateFault("becomes no token")
        return ids

    def _render(self, messages: list[Message]) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, **self._arguments)
        except _DateWanted as wanted:
            raise TemplateFault(
                "the chat template asks for today's date, so the set would differ from day to day; "
                "give the recipe a date: YYYY-MM-DD"
            ) from wanted
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise TemplateFault(f"the chat template says: {_words(error)}") from error
        return text


def without_system(content: Content) -> Content:
    """The conversation without its system turns; a text as it is."""
    return content if isinstance(content, str) else [message for message in content if message["role"] != "system"]


def template_text(tokenizer: Tokenizer, arguments: Mapping[str, Any]) -> str | None:
    """The chat template that these arguments select; None where the tokenizer has none."""
    try:
        text: str = tokenizer.get_chat_template(None, arguments.get("tools"))
    except ValueError:
        return None
    return text


def unread_arguments(template: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Arguments whose name is nowhere in the template, so that they do nothing."""
    for name in arguments:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            yield name


def _clock(day: str | None) -> Any:
    """What stands in for `strftime_now` of transformers' templates: the same on every day."""

    def strftime_now(form: str) -> str:
        if day is None:
            raise _DateWanted
        return date.fromisoformat(day).strftime(form)

    return strftime_now


def _words(error: Exception) -> str:
    """The first line of what an error says, or its name."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
