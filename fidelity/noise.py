"""What a number of prompts can tell: whether a difference between paired values is more than chance would make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from serving.bootstrap import paired_interval, widened

Verdict = Literal["equal", "noise", "lower", "higher", "too few"]

FEWEST = 6
"""Prompts below which nothing is told apart: five that all fall to one side do so by chance in one case of 16."""

POWER = 0.8
"""The chance that a difference shall have of being told, with as many prompts as `needed`."""


@dataclass(frozen=True)
class Trust:
    """How sure one wants to be. `resamples` and `seed` are the bootstrap's."""

    level: float = 0.95
    resamples: int = 10_000
    seed: int = 0


@dataclass(frozen=True)
class Difference:
    """A mean difference over `n` prompts, its interval, and what it is worth.

    `needed`: prompts with which a difference like this would be told in four of five cases; None where it is told or 0.
    """

    value: float
    low: float
    high: float
    n: int
    verdict: Verdict
    needed: int | None = None


def difference(
    one: Sequence[float], other: Sequence[float], trust: Trust, *, weights: Sequence[float] | None = None, rate: bool
) -> Difference:
    """`one - other`, prompt by prompt; the mean is weighted where `weights` are given. Values of a `rate` are 0 or 1.

    A difference is told if its bootstrap interval leaves out 0, for rates if moreover the exact sign test of the
    prompts that differ would find it. ValueError for no prompts.
    """
    deltas = [left - right for left, right in zip(one, other, strict=True)]
    shares = influences(deltas, weights or [1.0] * len(deltas))
    value, n = math.fsum(shares) / len(shares), len(shares)
    if not any(deltas):
        return Difference(0.0, 0.0, 0.0, n, "equal")
    level = widened(trust.level, n)
    low, high = paired_interval(shares, level=level, resamples=trust.resamples, seed=trust.seed)
    unsure = low <= 0 <= high or (rate and sign_test(deltas) > 1 - trust.level)
    if n >= FEWEST and not unsure:
        return Difference(value, low, high, n, "lower" if value < 0 else "higher")
    count = needed(shares, trust.level)
    more = None if count is None else max(count, n + 1)
    return Difference(value, low, high, n, "noise" if n >= FEWEST else "too few", more)


def influences(deltas: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Values whose plain mean is the weighted mean of `deltas`, and whose spread is that of this mean times sqrt(n).

    The weighted mean is a ratio of two means, so this is its linearization (Efron & Tibshirani 1993, 21.4).
    """
    total = math.fsum(weights)
    mean = math.fsum(weight * delta for weight, delta in zip(weights, deltas, strict=True)) / total
    per = total / len(weights)
    return [mean + weight * (delta - mean) / per for weight, delta in zip(weights, deltas, strict=True)]


def sign_test(deltas: Sequence[float]) -> float:
    """The two-sided p of as many positive among the deltas that are not 0 (for 0 and 1: McNemar's test, exact)."""
    up, down = sum(delta > 0 for delta in deltas), sum(delta < 0 for delta in deltas)
    tail = sum(math.comb(up + down, k) for k in range(min(up, down) + 1))
    return min(1.0, math.ldexp(tail, 1 - up - down))


def needed(values: Sequence[float], level: float) -> int | None:
    """Prompts with which a mean and a spread as those of `values` would be told in four of five cases.

    ((z of the level + z of the power) * spread / mean) squared, for normal means; None where the mean is 0 or the
    spread unknown. Never fewer than `FEWEST`.
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2 or mean == 0:
        return None
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    z = NormalDist().inv_cdf((1 + level) / 2) + NormalDist().inv_cdf(POWER)
    return max(FEWEST, math.ceil(z * z * variance / (mean * mean)))
