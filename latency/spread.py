"""Medians with quartiles, and whether candidates differ by more than noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Literal

from latency.measuring import Cell, Result
from latency.turns import Round
from serving import Speculation, paired_interval, widened

FIGURES = ("first_ms", "whole_ms", "token_ms", "tokens_per_second")
"""Time to the first token, of the whole turn, per token; and what all streams emit together."""

Figure = str
Verdict = Literal["different", "noise", "too few rounds"]

FEWEST_ROUNDS = 5
"""Below this the bootstrap's interval is much too narrow to be believed."""

LEVEL = 0.95


@dataclass(frozen=True)
class Spread:
    """Median and quartiles (linear between the two nearest values) of `count` values."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread | None:
        if not values:
            return None
        if len(values) == 1:
            return Spread(values[0], values[0], values[0], 1)
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return Spread(middle, low, high, len(values))


@dataclass(frozen=True)
class Difference:
    """How many times as long (for tokens_per_second: as many) `candidate` took as `against`, over paired rounds.

    `ratio` is the geometric mean of the rounds' ratios, `low` and `high` the bounds of its bootstrap interval.
    """

    candidate: str
    against: str
    figure: Figure
    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> Verdict:
        if self.pairs < FEWEST_ROUNDS:
            return "too few rounds"
        return "noise" if self.low <= 1 <= self.high else "different"


_OF_TURN: dict[Figure, Callable[..., float | None]] = {
    "first_ms": lambda turn: turn.first,
    "whole_ms": lambda turn: turn.whole,
    "token_ms": lambda turn: turn.token,
}


def values(rounds: Sequence[Round], figure: Figure) -> list[float]:
    """All values of a figure: one a request, of throughput one a round."""
    if figure == "tokens_per_second":
        return [done.tokens_per_second for done in rounds]
    found = [_OF_TURN[figure](turn) for done in rounds for turn in done.turns]
    return [value for value in found if value is not None]


def differences(cell: Cell, seed: int) -> list[Difference]:
    """Every candidate against the first, figure by figure, where both have a value for the same round."""
    first, *others = cell.rounds
    found = [_difference(cell, name, first, figure, seed) for name in others for figure in FIGURES]
    return [difference for difference in found if difference is not None]


def _difference(cell: Cell, name: str, against: str, figure: Figure, seed: int) -> Difference | None:
    ours, theirs = _by_round(cell.rounds[name], figure), _by_round(cell.rounds[against], figure)
    logs = [math.log(ours[number] / theirs[number]) for number in sorted(ours.keys() & theirs.keys())]
    if not logs:
        return None
    low, high = paired_interval(logs, level=widened(LEVEL, len(logs)), seed=seed)
    return Difference(name, against, figure, math.exp(sum(logs) / len(logs)), math.exp(low), math.exp(high), len(logs))


def _by_round(rounds: Sequence[Round], figure: Figure) -> dict[int, float]:
    """One value a round: of several streams the median."""
    found = {done.number: values([done], figure) for done in rounds}
    return {number: median(many) for number, many in found.items() if many and min(many) > 0}


def drafts(rounds: Sequence[Round]) -> Speculation | None:
    """Speculative decoding over all rounds: of counters the sums, of gauges the mean. None without it."""
    found = [done.speculation for done in rounds if done.speculation]
    if not found:
        return None
    counts = [(one.drafts, one.drafted, one.accepted) for one in found]
    if any(None in count for count in counts):
        rates, lengths = [one.acceptance for one in found], [one.length for one in found]
        return Speculation(_mean(rates), _mean(lengths))
    steps, drafted, accepted = (sum(count[place] or 0 for count in counts) for place in range(3))
    places = range(max(len(one.by_position) for one in found))
    by_position = tuple(sum(_accepted(one, place) for one in found) / steps for place in places)
    return Speculation(accepted / drafted, 1 + accepted / steps, by_position, steps, drafted, accepted)


def _accepted(one: Speculation, place: int) -> float:
    return one.by_position[place] * (one.drafts or 0) if place < len(one.by_position) else 0.0


def _mean(found: Sequence[float | None]) -> float | None:
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known else None


def all_differences(result: Result) -> list[list[Difference]]:
    return [differences(cell, result.settings.seed) for cell in result.cells]
