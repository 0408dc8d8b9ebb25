"""One packed module against the weight it was made of.

Round-to-nearest can be computed again, so an export by it must match to the bit, in one of the two maths modes.
A calibrated module cannot: GPTQ moves each weight to make up for the error of others, so of it can be asked only that
what it stands for is near the weight. How near depends on the grid: plain rounding errs evenly within a
step, and compensation adds to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isnan, sqrt
from typing import TYPE_CHECKING, Literal

from checkpoint import TensorRef
from checkpoint.dtypes import FLOATS
from verify.arithmetic import (
    MODES,
    SUPPORTED_BITS,
    Grid,
    Mode,
    codes_of,
    pack_rows,
    scales_of,
    to_float32,
    unpack_columns,
    unpack_rows,
    values_of,
)
from verify.blocks import read_bytes, read_rows, row_blocks
from verify.case import Case
from verify.packed import Packed

if TYPE_CHECKING:
    from verify.arithmetic import Bytes, Floats

NEAR = {4: 0.35, 8: 0.05}
"""Relative error (Frobenius) that a calibrated module may have by bits, whatever its groups."""

COMPENSATION = 2.5
"""How many times the error of plain rounding on the stored grid a calibrated module may have."""

FARTHEST = 0.7
"""A relative error that no grid excuses: unrelated weights have 1 and more."""

Kind = Literal["exact", "near", "mixed", "far", "unscaled"]
"""`mixed`: exact in some blocks, or in most rows of one, and not in others;
`unscaled`: a scale that is no positive number, which N01 reports."""


@dataclass(frozen=True)
class Job:
    """A packed module of `rows` x `columns`, its parts and the run of bytes in the base that it was made of."""

    module: Packed
    origin: TensorRef
    grid: Grid

    @property
    def name(self) -> str:
        return self.module.name


@dataclass(frozen=True)
class Block:
    """Some rows: the weight they were made of, and what is stored of them. `zeros` is None where symmetric."""

    weight: Floats
    packed: Bytes
    scale: Floats
    zeros: Floats | None

    def values(self, grid: Grid) -> Floats:
        """What the rows stand for."""
        return values_of(unpack_rows(self.packed, grid.bits, self.weight.shape[1]), self.scale, self.zeros, grid.group)


@dataclass(frozen=True)
class Verdict:
    """`modes` in which the module is exactly what rounding gives; else its relative `error`, worst in `rows`."""

    job: Job
    kind: Kind
    modes: frozenset[Mode]
    error: float = 0.0
    rows: tuple[int, int] = (0, 0)


def job_for(case: Case, module: Packed) -> Job | None:
    """The job for a module whose parts have the shapes that T03 to T09 ask for; None where it cannot be computed."""
    wanted = case.inventory.weights.get(module.name) if case.inventory else None
    packed, scale = module.parts.get("weight_packed"), module.parts.get("weight_scale")
    if wanted is None or wanted.origin is None or module.scheme is None or packed is None or scale is None:
        return None
    bits, origin = module.scheme.num_bits, wanted.origin
    if bits not in SUPPORTED_BITS or len(origin.shape) != 2 or {origin.dtype, scale.dtype} - FLOATS:
        return None
    rows, columns = origin.shape
    group = module.scheme.group_size or columns
    grid = Grid(origin.dtype, bits, group, module.scheme.symmetric)
    return Job(module, origin, grid) if columns % group == 0 and _fits(module, grid, rows, columns) else None


def _fits(module: Packed, grid: Grid, rows: int, columns: int) -> bool:
    groups = columns // grid.group
    expected = {"weight_packed": (rows, -(-columns * grid.bits // 32)), "weight_scale": (rows, groups)}
    if not grid.symmetric:
        expected["weight_zero_point"] = (-(-rows * grid.bits // 32), groups)
    return all(part in module.parts and module.parts[part].shape == shape for part, shape in expected.items())


def recompute(case: Case, job: Job, seen: Callable[[Block], None] = lambda block: None) -> Verdict:
    """Compare block by block; all of the module at level `full`, its first rows else. `seen` is given each block."""
    import numpy as np

    modes, exact, error = frozenset(MODES), 0, _Error()
    for rows in row_blocks(case, *job.origin.shape):
        block = read_block(case, job, job.origin, *rows)
        if not (block.scale > 0).all() or np.isinf(block.scale).any():
            return Verdict(job, "unscaled", frozenset())
        seen(block)
        found, partly = exact_modes(block, job, modes or frozenset(MODES))
        exact += partly
        if found:
            modes &= found
            exact += bool(block.weight.any())
        else:
            error.add(block, job.grid, rows)
    if error.blocks == 0:
        return Verdict(job, "exact", modes)
    if error.relative > error.limit(job.grid):
        return Verdict(job, "far", frozenset(), error.relative, error.worst)
    return Verdict(job, "mixed" if exact else "near", frozenset(), error.relative, error.worst)


def read_block(case: Case, job: Job, origin: TensorRef, start: int, end: int) -> Block:
    """Rows [start, end) of the module, beside the same rows of `origin`; `start` divides by `blocks.ROWS`."""
    import numpy as np

    parts, grid = job.module.parts, job.grid
    weight = to_float32(read_rows(case, origin, start, end).reshape(-1), origin.dtype).reshape(end - start, -1)
    scale = to_float32(read_rows(case, parts["weight_scale"], start, end).reshape(-1), parts["weight_scale"].dtype)
    zeros = None
    if not grid.symmetric:
        width = parts["weight_zero_point"].shape[1] * 4
        words = range(start * grid.bits // 32, -(-end * grid.bits // 32))
        raw = read_bytes(case, parts["weight_zero_point"], words.start * width, words.stop * width)
        zeros = unpack_columns(raw.reshape(len(words), -1, 4), grid.bits, end - start).astype(np.float32)
    packed = read_rows(case, parts["weight_packed"], start, end)
    return Block(weight, packed, scale.reshape(end - start, -1), zeros)


def exact_modes(block: Block, job: Job, modes: frozenset[Mode]) -> tuple[frozenset[Mode], bool]:
    """Those of `modes` in which rounding the weight gives exactly what is stored; if none, whether most rows are so.

    Calibration moves the weights of every row, or changes scales: with all scales as rounding gives them, rows are
    exact together or not at all.
    """
    import numpy as np

    none: frozenset[Mode] = frozenset()
    if job.module.parts["weight_scale"].dtype != job.origin.dtype:
        return none, False
    scale, zeros = scales_of(block.weight, job.grid)
    if not np.array_equal(scale, block.scale):
        return none, False
    if zeros is not None and (block.zeros is None or not np.array_equal(zeros, block.zeros)):
        return none, False
    found, shares = set(), []
    filled = block.weight.any(axis=1)
    for mode in MODES:
        if mode in modes:
            codes = codes_of(block.weight, scale, zeros, job.grid, mode)
            rows = (pack_rows(codes, job.grid.bits) == block.packed).all(axis=1)
            if rows.all():
                found.add(mode)
            shares.append(int(rows[filled].sum()))
    return frozenset(found), not found and max(shares) * 2 > int(filled.sum())


def relative_error(values: Floats, weight: Floats) -> float:
    """|values - weight| / |weight|, Frobenius norms; infinite where the weight is zero and the values are not."""
    import numpy as np

    difference = values - weight
    return _ratio(float(np.vdot(difference, difference)), float(np.vdot(weight, weight)))


def _ratio(error: float, size: float) -> float:
    """The root of the ratio of two squared norms; NaN in either is as bad as can be."""
    if isnan(error) or isnan(size):
        return inf
    return sqrt(error / size) if size else (inf if error else 0.0)


class _Error:
    """The error over blocks that are not exact."""

    def __init__(self) -> None:
        self.blocks = 0
        self.worst = (0, 0)
        self._worst = -1.0
        self._error = self._size = self._steps = self._count = 0.0

    def add(self, block: Block, grid: Grid, rows: tuple[int, int]) -> None:
        import numpy as np

        difference = block.values(grid) - block.weight
        error, size = float(np.vdot(difference, difference)), float(np.vdot(block.weight, block.weight))
        self._error += error
        self._size += size
        self._steps += float(np.vdot(block.scale, block.scale)) * grid.group
        self._count += block.weight.size
        self.blocks += 1
        if (ratio := _ratio(error, size)) > self._worst:
            self._worst, self.worst = ratio, rows

    @property
    def relative(self) -> float:
        return _ratio(self._error, self._size)

    def limit(self, grid: Grid) -> float:
        """What the stored grid excuses: plain rounding errs by step / sqrt(12) a weight."""
        rounding = sqrt(self._steps / 12 / self._size) if self._size else 0.0
        return min(max(NEAR[grid.bits], COMPENSATION * rounding), FARTHEST)
