"""What every way of running a model can do here: answer prompts, and say what it gives to given answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from fidelity.prompts import Prompt
from fidelity.replies import Reply, Source

Progress = Callable[[int], None]
"""Told of each number of prompts that are done."""


class Runner(Protocol):
    """A model that runs, until the context it came from is left."""

    @property
    def source(self) -> Source: ...

    def answer(self, prompts: Sequence[Prompt], max_tokens: int, progress: Progress) -> list[Reply]:
        """The greedy answer to each prompt, of at most `max_tokens` tokens."""

    def score(self, prompts: Sequence[Prompt], replies: Sequence[Reply], progress: Progress) -> list[tuple[float, ...]]:
        """The NLL of every token of each reply behind its prompt, in nats. Raises Unscored."""


class Unscored(Exception):
    """This runner gives no log-probabilities of a given text; says why."""


Backend = Callable[[], AbstractContextManager[Runner]]
"""Starts a model, and frees what it holds when the context is left."""
