"""How far the values of one weight are from those of another: what is added up while reading, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, log10, sqrt


@dataclass(frozen=True, slots=True)
class Sums:
    """Of some weights `a` and what `b` has in their place; those of several blocks add up.

    `differing` counts the weights of other value; `error` and `size` are the squared norms of b - a and of a in 64
    bits, `largest_error` and `largest` the maxima of |b - a| and |a|, infinite unless all are finite. Where b is
    packed, `groups` counts its groups, `zero` those that stand for zeros alone, `lost` those of them that are not zeros
    in a, `codes` its codes, `saturated` those at either end of their range.
    """

    weights: int = 0
    differing: int = 0
    error: float = 0.0
    size: float = 0.0
    largest_error: float = 0.0
    largest: float = 0.0
    groups: int = 0
    zero: int = 0
    lost: int = 0
    codes: int = 0
    saturated: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.weights + other.weights,
            self.differing + other.differing,
            self.error + other.error,
            self.size + other.size,
            max(self.largest_error, other.largest_error),
            max(self.largest, other.largest),
            self.groups + other.groups,
            self.zero + other.zero,
            self.lost + other.lost,
            self.codes + other.codes,
            self.saturated + other.saturated,
        )

    @property
    def is_finite(self) -> bool:
        """Are both sides free of NaN and infinity?"""
        return isfinite(self.error) and isfinite(self.size)

    @property
    def relative(self) -> float:
        """|b - a| / |a| in Frobenius norms; infinite where a is zero and b is not, and where either is not finite."""
        if not self.is_finite:
            return inf
        return sqrt(self.error / self.size) if self.size else (inf if self.error else 0.0)

    @property
    def sqnr(self) -> float:
        """Signal to quantization noise in dB, 10 log10(|a|² / |b - a|²); infinite where b is a."""
        if not isfinite(self.relative):
            return -inf
        return -20 * log10(self.relative) if self.relative else inf

    @property
    def largest_relative(self) -> float:
        """The largest |b - a| in units of the largest |a|."""
        if not self.is_finite:
            return inf
        return self.largest_error / self.largest if self.largest else (inf if self.largest_error else 0.0)

    @property
    def saturation(self) -> float | None:
        """The share of codes at either end of their range; None where b is not packed."""
        return self.saturated / self.codes if self.codes else None
