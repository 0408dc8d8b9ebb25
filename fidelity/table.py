"""What is measured of a reply, one entry a measure; each gives a number to a prompt, or none where it says nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from fidelity.measures import common_prefix, distinct_2, first_sentence, is_empty, is_same, loops
from fidelity.probes import passes
from fidelity.prompts import Prompt
from fidelity.replies import Reply


@dataclass(frozen=True)
class Case:
    """One prompt, the base's reply to it, a model's own reply, and the NLL it gives to each token of the base's."""

    prompt: Prompt
    reference: Reply
    own: Reply
    nll: tuple[float, ...] | None


@dataclass(frozen=True)
class Measure:
    """`value`: of one prompt, None where it has none. `weighted`: the mean is over tokens. `rate`: values are 0 or 1.

    `of_base`: it is worth telling of the base itself, too.
    """

    name: str
    title: str
    value: Callable[[Case], float | None]
    rate: bool = True
    weighted: bool = False
    of_base: bool = True


def nll(case: Case) -> float | None:
    """Mean NLL per token of the base's reply, in nats."""
    return fmean(case.nll) if case.nll else None


def exact(case: Case) -> float:
    return float(is_same(case.own.text, case.reference.text))


def same_beginning(case: Case) -> float:
    return float(first_sentence(case.own.text) == first_sentence(case.reference.text))


def diverges_at(case: Case) -> int | None:
    """The first token that is not the base's, counted from 0; None where all are, or where tokens are not known."""
    if case.own.ids is None or case.reference.ids is None:
        return None
    return common_prefix(case.own.ids, case.reference.ids)


def diversity(case: Case) -> float | None:
    return distinct_2(case.own.text) if case.prompt.long else None


def form(case: Case) -> float | None:
    return None if case.prompt.format is None else float(passes(case.own.text, case.prompt.format))


MEASURES = (
    Measure("nll", "NLL per token", nll, rate=False, weighted=True),
    Measure("exact", "same reply", exact, of_base=False),
    Measure("first_sentence", "same first sentence", same_beginning, of_base=False),
    Measure("distinct_2", "distinct-2 of long replies", diversity, rate=False),
    Measure("format", "form asked for", form),
    Measure("empty", "empty replies", lambda case: float(is_empty(case.own.text))),
    Measure("loop", "repetition loops", lambda case: float(loops(case.own.text))),
    Measure("truncated", "truncated", lambda case: float(case.own.finish == "length")),
)


def weight(measure: Measure, case: Case) -> float:
    return float(len(case.nll or ())) if measure.weighted else 1.0


def mean(values: list[float], weights: list[float]) -> float:
    """The weighted mean. ZeroDivisionError for none."""
    return math.fsum(value * share for value, share in zip(values, weights, strict=True)) / math.fsum(weights)
