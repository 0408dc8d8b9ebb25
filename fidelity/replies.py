"""What a model said, what it was asked with, and what it gives to tokens: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Reply:
    """A greedy answer. `finish`: `stop`, `length`, or what else a server says.

    `prompt_ids`, `ids`: the tokens of prompt and answer, the end token left out; None where the server shows none.
    `nll`: what the model that wrote it gives to each of its tokens, in nats; None where that was not measured.
    """

    id: str
    text: str
    finish: str | None
    prompt_ids: Ids | None = None
    ids: Ids | None = None
    nll: tuple[float, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Layout:
    """How prompts become tokens. `by`: `tokenizer` (its chat template, applied here), `server` (its own), or `raw`
    (no template, a text to be continued). `sha256` is of the template, where it is known."""

    by: str
    sha256: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """Who answered: the model's name, what ran it, and in which precision, as far as that is known."""

    model: str
    engine: str
    layout: Layout
    dtype: str | None = None

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.model, self.engine, self.dtype)))
