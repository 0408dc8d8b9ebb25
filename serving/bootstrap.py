"""How sure a difference between paired measurements is."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

BLOCK = 4_000_000
"""Drawn values that are held at once."""


def paired_interval(
    differences: Sequence[float], *, level: float = 0.95, resamples: int = 10_000, seed: int
) -> tuple[float, float]:
    """The bootstrap interval of the mean of paired differences, by percentiles (Efron 1979).

    Each resample draws as many of `differences` as there are, with repetition. For few pairs it is too narrow: give it
    `widened(level, n)`. ValueError for no differences, or a level that is not above 0 and at most 1.
    """
    import numpy as np

    values = np.asarray(differences, dtype=np.float64)
    if not values.size or not np.isfinite(values).all():
        raise ValueError("differences: at least one, all of them finite")
    if not 0 < level <= 1:
        raise ValueError("level: above 0, at most 1")
    means = _resampled_means(values, resamples, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def widened(level: float, n: int) -> float:
    """The level of percentiles at which the bootstrap's interval of a mean of `n` values is as wide as Student's.

    Resamples spread less than samples do, by sqrt((n - 1) / n), and know nothing of the uncertainty of the spread
    itself; both are made up for by taking percentiles further out (Hesterberg 2015, "expanded percentile interval").
    For two or three values that is all resamples, a level of 1.
    """
    if n < 2:
        return level
    return 2 * NormalDist().cdf(sqrt(n / (n - 1)) * student((1 + level) / 2, n - 1)) - 1


def student(share: float, freedom: int) -> float:
    """Student's quantile, by the expansion in 1/freedom around the normal one (Abramowitz and Stegun 26.7.5).

    To three digits from 4 degrees of freedom on, for shares from 0.01 to 0.99.
    """
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + fsum(term / freedom**power for power, term in enumerate(terms, 1))


def _resampled_means(
    values: np.ndarray[tuple[int], np.dtype[np.float64]], resamples: int, random: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The mean of each of `resamples` resamples, drawn by the block. Shape (resamples,), F64."""
    import numpy as np

    step = max(1, BLOCK // values.size)
    means = [
        values[random.integers(0, values.size, (min(step, resamples - done), values.size))].mean(axis=1)
        for done in range(0, resamples, step)
    ]
    return np.concatenate(means)
