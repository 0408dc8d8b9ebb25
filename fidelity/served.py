"""A model behind a server that speaks OpenAI's protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from checkpoint import Problem, Refused
from fidelity.backend import Progress, Unscored
from fidelity.laying import Layer, load_tokenizer, raw_text
from fidelity.prompts import Prompt
from fidelity.replies import Ids, Layout, Reply, Source
from serving import Ask, Declined, Incapable, Server, score, why_not_scoring

T = TypeVar("T")

NO_REASONING = "Turn reasoning off, as by --template-arguments '{\"enable_thinking\": false}', or its parser"


@dataclass(frozen=True)
class Address:
    """Where a server is, and what it is asked. `model`: None for the only one that it lists.

    `tokenizer`: a folder whose tokenizer and template lay the prompts out here; without, the server's own does, or none
    if `raw`. `arguments`: the template's. `parallel`: requests at a time.
    """

    url: str
    model: str | None = None
    api_key_env: str | None = None
    tokenizer: Path | None = None
    raw: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    parallel: int = 1
    timeout: float = 600.0


@contextmanager
def served(address: Address) -> Iterator[Served]:
    """The server's model. Raises ServerFault; Refused or MissingExtra for the tokenizer."""
    layer = None
    if address.tokenizer is not None:
        layer = Layer(load_tokenizer(address.tokenizer), raw=address.raw, arguments=address.arguments)
    with Server(address.url, address.model, address.api_key_env, timeout=address.timeout) as server:
        yield Served(server, address, layer)


class Served:
    """A server's model. `fidelity.backend.Runner` says what it does."""

    def __init__(self, server: Server, address: Address, layer: Layer | None) -> None:
        self._server, self._address, self._layer = server, address, layer
        own = Layout("raw") if address.raw else Layout("server", None, dict(address.arguments))
        engine = " ".join(filter(None, (server.engine.title, server.version)))
        self.source = Source(server.model, engine, layer.layout if layer else own)

    def answer(self, prompts: Sequence[Prompt], max_tokens: int, progress: Progress) -> list[Reply]:
        return self._each(lambda row: self._answered(prompts[row], max_tokens), len(prompts), progress)

    def score(self, prompts: Sequence[Prompt], replies: Sequence[Reply], progress: Progress) -> list[tuple[float, ...]]:
        why = why_not_scoring(self._server)
        if why is not None:
            raise Unscored(why)
        try:
            return self._each(lambda row: self._scored(prompts[row], replies[row]), len(prompts), progress)
        except (Incapable, Declined) as error:
            raise Unscored(str(error)) from error

    def _each(self, work: Callable[[int], T], count: int, progress: Progress) -> list[T]:
        """What `work` makes of each number, in order, several at a time."""
        with ThreadPoolExecutor(self._address.parallel) as pool:
            futures = [pool.submit(work, row) for row in range(count)]
            try:
                found = []
                for future in futures:
                    found.append(future.result())
                    progress(1)
                return found
            finally:
                for future in futures:
                    future.cancel()

    def _answered(self, prompt: Prompt, max_tokens: int) -> Reply:
        said = self._server.answer(Ask(self._asked(prompt), max_tokens, extra=self._extra))
        if said.reasoning:
            found = "the server sets the model's reasoning apart, so that what it generated is not known"
            raise Refused(Problem("reply-reasoned", found, prompt.id, remedy=NO_REASONING))
        text = said.text.encode("utf-8", "replace").decode()  # JSON can hold halves of characters, no tokenizer can
        before, behind = self._tokens(prompt, text)
        return Reply(prompt.id, text, said.finish, before, behind)

    def _scored(self, prompt: Prompt, reply: Reply) -> tuple[float, ...]:
        """By token ids where they are known, else by texts, of which the server then shows the tokens."""
        before, behind = reply.prompt_ids, reply.ids
        if before is None or behind is None:
            before, behind = self._tokens(prompt, reply.text)
        if before is not None and behind is not None:
            scores = score(self._server, before, behind)
        elif self.source.layout.by == "raw":
            scores = score(self._server, raw_text(prompt), reply.text)
        else:
            remedy = "give --tokenizer DIR"
            raise Unscored(f"the server lays prompts out by its own template and shows no tokens; {remedy}")
        return tuple(-token.logprob for token in scores.tokens)

    def _asked(self, prompt: Prompt) -> str | Ids | tuple[Mapping[str, Any], ...]:
        if self._layer is not None:
            return self._layer.prompt_ids(prompt)
        return raw_text(prompt) if self._address.raw else prompt.turns

    def _tokens(self, prompt: Prompt, text: str) -> tuple[Ids | None, Ids | None]:
        """Of prompt and answer, by the tokenizer here or the server's own; None where neither shows them."""
        if self._layer is not None:
            return self._layer.prompt_ids(prompt), self._layer.ids(text)
        if self._server.engine.tokenize is None:
            return None, None
        raw = self._address.raw
        before = self._server.token_ids(raw_text(prompt) if raw else prompt.turns, **self._extra)
        behind = self._server.token_ids(text, special=False) if text else []
        return tuple(before), tuple(behind)

    @property
    def _extra(self) -> dict[str, Any]:
        """What the server's own template is given."""
        layout = self.source.layout
        return {"chat_template_kwargs": dict(layout.arguments)} if layout.by == "server" and layout.arguments else {}
