"""Bytes against measured time: a time that does not depend on the bytes, and the bandwidth at which they move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """`fixed` seconds a token and `bandwidth` bytes a second, by least squares; `residuals` are measured minus fitted
    seconds, point by point."""

    fixed: float
    bandwidth: float
    residuals: tuple[float, ...]


def fit(nbytes: Sequence[float], seconds: Sequence[float]) -> Line | None:
    """The line through the points; None where there are fewer than two different ones, or more bytes take no more time.

    Two points are met exactly, so that they prove nothing.
    """
    middle = sum(nbytes) / len(nbytes) if nbytes else 0.0
    spread = sum((one - middle) ** 2 for one in nbytes)
    if not spread:
        return None
    mean = sum(seconds) / len(seconds)
    slope = sum((x - middle) * (y - mean) for x, y in zip(nbytes, seconds, strict=True)) / spread
    if slope <= 0:
        return None
    fixed = mean - slope * middle
    return Line(fixed, 1 / slope, tuple(y - fixed - slope * x for x, y in zip(nbytes, seconds, strict=True)))
