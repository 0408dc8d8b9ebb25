"""The run itself: the base answers, every candidate answers, and each says what it gives to the base's tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fidelity.backend import Backend, Progress, Runner, Unscored
from fidelity.prompts import Prompt
from fidelity.references import References
from fidelity.replies import Reply, Source

Watch = Callable[[str], Progress]
"""Given what is done now, what to tell of each number of prompts that are done."""


@dataclass(frozen=True)
class Candidate:
    """A candidate's own answers, and the NLL it gives to each token of the base's; `unscored` says why it does not."""

    name: str
    source: Source
    replies: tuple[Reply, ...]
    nll: tuple[tuple[float, ...], ...] | None
    unscored: str | None = None


def ask_base(
    backend: Backend, prompts: Sequence[Prompt], max_tokens: int, watch: Watch, *, scorer: Backend | None = None
) -> References:
    """The base's greedy answers, with its own NLL of them: by its own backend where that gives it, or by `scorer`.

    Raises CkptError.
    """
    with backend() as running:
        replies = tuple(running.answer(prompts, max_tokens, watch("the base answers")))
        answered = References(running.source, max_tokens, replies)
        if scorer is None:
            return _with_own_nll(answered, running, prompts, watch)
    with scorer() as running:
        return _with_own_nll(answered, running, prompts, watch)


def _with_own_nll(answered: References, running: Runner, prompts: Sequence[Prompt], watch: Watch) -> References:
    try:
        found = finite(running.score(prompts, answered.replies, watch("the base judges")), prompts)
    except Unscored as why:
        return replace(answered, unscored=str(why))
    scored = (replace(reply, nll=nll) for reply, nll in zip(answered.replies, found, strict=True))
    return replace(answered, replies=tuple(scored))


def ask_candidate(
    name: str,
    backend: Backend,
    references: References,
    prompts: Sequence[Prompt],
    watch: Watch,
    *,
    scorer: Backend | None = None,
) -> Candidate:
    """A candidate's answers, and its NLL of the base's: by its own backend, or by `scorer`. Raises CkptError."""
    with backend() as running:
        replies = tuple(running.answer(prompts, references.max_tokens, watch(f"{name} answers")))
        answered = Candidate(name, running.source, replies, None)
        if scorer is None:
            return _scored(answered, running, references, prompts, watch)
    with scorer() as running:
        return _scored(answered, running, references, prompts, watch)


def _scored(
    answered: Candidate, running: Runner, references: References, prompts: Sequence[Prompt], watch: Watch
) -> Candidate:
    try:
        scores = running.score(prompts, references.replies, watch(f"{answered.name} judges"))
        return replace(answered, nll=finite(scores, prompts))
    except Unscored as why:
        return replace(answered, unscored=str(why))


def finite(scores: Sequence[tuple[float, ...]], prompts: Sequence[Prompt]) -> tuple[tuple[float, ...], ...]:
    """The scores. Raises Unscored where one is no finite number: a model that computes NaN cannot be compared."""
    for prompt, nll in zip(prompts, scores, strict=True):
        for position, value in enumerate(nll):
            if not math.isfinite(value):
                raise Unscored(f"the NLL of token {position} of the reply to {prompt.id} is {value}")
    return tuple(scores)
