"""Numbers beside the verdict: how far packed weights are from what they were made of, for reports that plot them."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verify.recompute import Block, Job

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


def natural_order(one: Measurement) -> list[tuple[bool, int, str]]:
    """A key by which layer 2 comes before layer 10."""
    parts = one.module.split(".")
    return [(part.isdecimal(), int(part) if part.isdecimal() and len(part) < 10 else 0, part) for part in parts]


class Tally:
    """Adds up the measurement of one job, block by block."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._error = self._size = 0.0
        self._saturated = self._count = 0
        self._steps = [0] * BINS

    def add(self, block: Block) -> None:
        """Take the rows of `block` in."""
        import numpy as np

        from verify.arithmetic import unpack_rows, values_of

        grid, weight = self._job.grid, block.weight
        codes = unpack_rows(block.packed, grid.bits, weight.shape[1])
        difference = values_of(codes, block.scale, block.zeros, grid.group) - weight
        self._error += float(np.vdot(difference, difference))
        self._size += float(np.vdot(weight, weight))
        self._saturated += int(np.count_nonzero((codes == grid.low) | (codes == grid.high)))
        self._count += codes.size
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = difference.reshape(len(codes), -1, grid.group) / block.scale[..., None]
        places = np.nan_to_num((np.clip(steps, -SPAN, SPAN) + SPAN) * (BINS / (2 * SPAN))).astype(np.intp)
        counts = np.bincount(np.minimum(places, BINS - 1).reshape(-1), minlength=BINS)
        self._steps = [before + int(now) for before, now in zip(self._steps, counts, strict=True)]

    @property
    def measurement(self) -> Measurement:
        job = self._job
        ratio = self._error / self._size if self._size else 0.0
        error = sqrt(ratio) if isfinite(ratio) else None
        saturation = self._saturated / self._count if self._count else 0.0
        return Measurement(job.name, job.grid.bits, job.grid.group, error, saturation, tuple(self._steps))
