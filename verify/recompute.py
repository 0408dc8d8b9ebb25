"""One packed module against the weight it was made of.

Round-to-nearest can be computed again, so an export by it must match to the bit, in one of the two maths modes.
A calibrated module cannot: GPTQ moves each weight to make up for the error of others, so of it can be asked only that
what it stands for is near the weight. How near depends on the grid: plain rounding errs evenly within a
step, and compensation adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, isnan, sqrt
from typing import Literal, NamedTuple

from checkpoint import TensorRef
from checkpoint.dtypes import FLOATS
from verify.arithmetic import MODES, SUPPORTED_BITS, Grid, Mode
from verify.case import Case
from verify.packed import Packed
from verify.rows import Piece, pieces

NEAR = {4: 0.35, 8: 0.05}
"""Relative error (Frobenius) that a calibrated module may have by bits, whatever its groups."""

COMPENSATION = 2.5
"""How many times the error of plain rounding on the stored grid a calibrated module may have."""

FARTHEST = 0.7
"""A relative error that no grid excuses: unrelated weights have 1 and more."""

Kind = Literal["exact", "near", "mixed", "far", "unscaled"]
"""`mixed`: exact in some blocks, or in most rows of one, and not in others;
`unscaled`: a scale that is no positive number, which N01 reports."""


@dataclass(frozen=True, slots=True)
class Job:
    """A packed module of `rows` x `columns`, its parts and the run of bytes in the base that it was made of."""

    module: Packed
    origin: TensorRef
    grid: Grid

    @property
    def name(self) -> str:
        return self.module.name

    @property
    def weights(self) -> int:
        return self.origin.shape[0] * self.origin.shape[1]


class Outcome(NamedTuple):
    """What came of a block of rows.

    `usable`: all scales are positive numbers, without which there is no more to say; `modes` in which the block is
    exactly what rounding gives; `partly`: in none, but most rows that are not all zeros are; `filled`: some row is
    such. Squared norms of the `error`, the weight (`size`) and the scales of all weights (`steps`), if in none.
    """

    usable: bool
    modes: frozenset[Mode] = frozenset()
    partly: bool = False
    filled: bool = False
    error: float = 0.0
    size: float = 0.0
    steps: float = 0.0


Judge = Callable[[Job, Piece, frozenset[Mode]], Iterator[Outcome]]
"""Judges the blocks of a piece in order, trying the modes given, and only those in which a block before was exact."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`modes` in which the module is exactly what rounding gives; else its relative `error`, worst in `rows`."""

    job: Job
    kind: Kind
    modes: frozenset[Mode]
    error: float = 0.0
    rows: tuple[int, int] = (0, 0)


def job_for(case: Case, module: Packed) -> Job | None:
    """The job for a module whose parts have the shapes that T03 to T09 ask for; None where it cannot be computed."""
    wanted = case.weights.get(module.name)
    packed, scale = module.parts.get("weight_packed"), module.parts.get("weight_scale")
    if wanted is None or wanted.origin is None or module.scheme is None or packed is None or scale is None:
        return None
    bits, origin = module.scheme.num_bits, wanted.origin
    if bits not in SUPPORTED_BITS or len(origin.shape) != 2 or origin.dtype not in FLOATS or scale.dtype not in FLOATS:
        return None
    rows, columns = origin.shape
    group = module.scheme.group_size or columns
    if columns % group or not _fits(module, bits, group, rows, columns):
        return None
    return Job(module, origin, Grid(origin.dtype, bits, group, module.scheme.symmetric))


def _fits(module: Packed, bits: int, group: int, rows: int, columns: int) -> bool:
    """Are the parts words of the shapes that the scheme calls for, and scales?"""
    parts, groups = module.parts, columns // group
    packed, zeros = parts["weight_packed"], parts.get("weight_zero_point")
    if packed.dtype != "I32" or packed.shape != (rows, -(-columns * bits // 32)):
        return False
    if parts["weight_scale"].shape != (rows, groups):
        return False
    if module.scheme and module.scheme.symmetric:
        return True
    return zeros is not None and zeros.dtype == "I32" and zeros.shape == (-(-rows * bits // 32), groups)


def recompute(case: Case, job: Job, judge: Judge, seen: Callable[[Piece, int], None] | None = None) -> Verdict:
    """Compare block by block; all of the module at level `full`, its first rows else.

    `seen` is given each piece with the number of its blocks before the first that is not usable.
    """
    modes, exact, error = frozenset(MODES), 0, _Error()
    for piece in pieces(case, job):
        outcomes = list(judge(job, piece, modes))
        if seen is not None:
            seen(piece, sum(outcome.usable for outcome in outcomes))
        for rows, outcome in zip(piece.blocks, outcomes, strict=False):
            if not outcome.usable:
                return Verdict(job, "unscaled", frozenset())
            exact += outcome.partly
            if outcome.modes:
                modes &= outcome.modes
                exact += outcome.filled
            else:
                error.add(outcome, rows)
    if not error.any:
        return Verdict(job, "exact", modes)
    if error.relative > error.limit(job.grid):
        return Verdict(job, "far", frozenset(), error.relative, error.worst)
    return Verdict(job, "mixed" if exact else "near", frozenset(), error.relative, error.worst)


def relative(error: float, size: float) -> float:
    """The root of the ratio of two squared norms; NaN in either is as bad as can be."""
    if isnan(error) or isnan(size):
        return inf
    return sqrt(error / size) if size else (inf if error else 0.0)


class _Error:
    """The error over blocks that are not exact."""

    def __init__(self) -> None:
        self.any = False
        self.worst = (0, 0)
        self._worst = -1.0
        self._error = self._size = self._steps = 0.0

    def add(self, outcome: Outcome, rows: tuple[int, int]) -> None:
        self.any = True
        self._error += outcome.error
        self._size += outcome.size
        self._steps += outcome.steps
        if (ratio := relative(outcome.error, outcome.size)) > self._worst:
            self._worst, self.worst = ratio, rows

    @property
    def relative(self) -> float:
        return relative(self._error, self._size)

    def limit(self, grid: Grid) -> float:
        """What the stored grid excuses: plain rounding errs by step / sqrt(12) a weight."""
        rounding = sqrt(self._steps / 12 / self._size) if self._size else 0.0
        return min(max(NEAR[grid.bits], COMPENSATION * rounding), FARTHEST)
