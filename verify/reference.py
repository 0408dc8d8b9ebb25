"""The verdict on blocks of rows by numpy, for all dtypes and groups: what the compiled kernels must agree with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from checkpoint import TensorRef
from verify.arithmetic import (
    MODES,
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
from verify.case import Case
from verify.measuring import BINS, SPAN, Counts
from verify.recompute import Job, Outcome, relative
from verify.rows import Piece, Rows, read_piece

if TYPE_CHECKING:
    from verify.arithmetic import Bytes, Codes, Floats


@dataclass(frozen=True)
class Block:
    """Some rows: the weight they were made of, and what is stored of them. `zeros` is None where symmetric."""

    grid: Grid
    weight: Floats
    packed: Bytes
    scale: Floats
    zeros: Floats | None

    def every(self, step: int) -> Block:
        """One row in so many."""
        zeros = None if self.zeros is None else self.zeros[::step]
        return Block(self.grid, self.weight[::step], self.packed[::step], self.scale[::step], zeros)

    @cached_property
    def codes(self) -> Codes:
        """The signed codes [rows, columns]."""
        return unpack_rows(self.packed, self.grid.bits, self.weight.shape[1])

    @cached_property
    def values(self) -> Floats:
        """What the rows stand for."""
        return values_of(self.codes, self.scale, self.zeros, self.grid.group)


def judge(job: Job, piece: Piece, modes: frozenset[Mode]) -> Iterator[Outcome]:
    """The outcome of each block; of one that is not usable, and none after it."""
    import numpy as np

    for number in range(len(piece.blocks)):
        block = block_of(job, piece.part(number, job.grid.bits))
        if not (block.scale > 0).all() or np.isinf(block.scale).any():
            yield Outcome(usable=False)
            return
        found, partly = _exact_modes(block, job, modes)
        filled = bool(block.weight.any())
        if found:
            modes = found
            yield Outcome(True, found, filled=filled)
        else:
            yield Outcome(True, found, partly, filled, *_sums(block))


def count(job: Job, piece: Piece) -> Counts:
    """The numbers of a piece for the report."""
    import numpy as np

    block, grid = block_of(job, piece), job.grid
    codes, difference = block.codes, block.values - block.weight
    error, size = float(np.vdot(difference, difference)), float(np.vdot(block.weight, block.weight))
    saturated = int(np.count_nonzero((codes == grid.low) | (codes == grid.high)))
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = difference.reshape(len(codes), -1, grid.group) / block.scale[..., None]
    places = np.nan_to_num((np.clip(steps, -SPAN, SPAN) + SPAN) * (BINS / (2 * SPAN))).astype(np.intp)
    counts = np.bincount(np.minimum(places, BINS - 1).reshape(-1), minlength=BINS)
    return Counts(error, size, saturated, counts.tolist())


def block_of(job: Job, piece: Piece) -> Block:
    """The rows of a piece as numbers."""
    import numpy as np

    rows, scale = piece.rows, job.module.parts["weight_scale"]
    weight = to_float32(piece.weight, job.origin.dtype).reshape(rows, -1)
    zeros = None
    if piece.zeros is not None:
        zeros = unpack_columns(piece.zeros, job.grid.bits, rows).astype(np.float32)
    scales = to_float32(piece.scale, scale.dtype).reshape(rows, -1)
    return Block(job.grid, weight, piece.packed.reshape(rows, -1), scales, zeros)


def read_block(case: Case, job: Job, origin: TensorRef, rows: Rows) -> Block:
    """Rows of the module, beside the same rows of `origin`; the first of them divides by `blocks.ROWS`."""
    return block_of(job, read_piece(case, job, origin, (rows,), lambda nbytes: memoryview(bytearray(nbytes))))


def _exact_modes(block: Block, job: Job, modes: frozenset[Mode]) -> tuple[frozenset[Mode], bool]:
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


def _sums(block: Block) -> tuple[float, float, float]:
    """Squared norms of the error, the weight, and the scales of all weights."""
    import numpy as np

    difference = block.values - block.weight
    error, size = float(np.vdot(difference, difference)), float(np.vdot(block.weight, block.weight))
    return error, size, float(np.vdot(block.scale, block.scale)) * block.grid.group


def relative_error(values: Floats, weight: Floats) -> float:
    """|values - weight| / |weight|, Frobenius norms; infinite where the weight is zero and the values are not."""
    import numpy as np

    difference = values - weight
    return relative(float(np.vdot(difference, difference)), float(np.vdot(weight, weight)))
