"""Numbers beside the verdict: how far packed weights are from what they were made of, for reports that plot them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from verify.recompute import Job
    from verify.rows import Piece

SPAN = 2.0
"""Steps to either side that the histogram tells apart; what is farther off counts in the outermost bins."""

BINS = 40


@dataclass(frozen=True)
class Measurement:
    """One packed module against the base, over the rows that were read.

    `error` is |values - weight| / |weight| in Frobenius norms, None where it is no finite number; `saturation` the
    share of codes at either end of the grid. `steps` counts the weights by their signed distance in steps of the grid,
    in `BINS` bins from -SPAN to SPAN: round-to-nearest fills the bins from -1/2 to 1/2.
    """

    module: str
    bits: int
    group: int
    error: float | None
    saturation: float
    steps: tuple[int, ...]


class Counts(NamedTuple):
    """Of a block of rows: squared norms of error and weight, codes at the grid's ends, weights by bin of distance."""

    error: float
    size: float
    saturated: int
    steps: Sequence[int]


Count = Callable[["Job", "Piece"], Counts]


def natural_order(one: Measurement) -> list[tuple[bool, int, str]]:
    """A key by which layer 2 comes before layer 10."""
    parts = one.module.split(".")
    return [(part.isdecimal(), int(part) if part.isdecimal() and len(part) < 10 else 0, part) for part in parts]


class Tally:
    """Adds up the measurement of one job, piece by piece."""

    def __init__(self, job: Job, counted: Count) -> None:
        self._job = job
        self._counted = counted
        self._error = self._size = 0.0
        self._saturated = self._weights = 0
        self._steps = [0] * BINS

    def add(self, piece: Piece, usable: int) -> None:
        """Take the first `usable` blocks of `piece` in."""
        for number in range(usable):
            counts = self._counted(self._job, piece.part(number, self._job.grid.bits))
            self._error += counts.error
            self._size += counts.size
            self._saturated += counts.saturated
            self._weights += sum(counts.steps)
            self._steps = [before + now for before, now in zip(self._steps, counts.steps, strict=True)]

    @property
    def measurement(self) -> Measurement:
        job = self._job
        ratio = self._error / self._size if self._size else 0.0
        error = sqrt(ratio) if isfinite(ratio) else None
        saturation = self._saturated / self._weights if self._weights else 0.0
        return Measurement(job.name, job.grid.bits, job.grid.group, error, saturation, tuple(self._steps))
