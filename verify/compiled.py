"""The verdict on blocks of rows by compiled kernels: ten times as fast as `verify.reference`, once they are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from threading import local
from typing import TYPE_CHECKING

from verify import reference
from verify.arithmetic import MODES, Mode, unpack_columns
from verify.measuring import BINS, SPAN, Counts
from verify.recompute import Job, Outcome
from verify.rows import Piece

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Operands = tuple[NDArray[np.uint32], NDArray[np.unsignedinteger], NDArray[np.uint16], NDArray[np.int8] | None]
    """Weights and codes by pairs, scales and zero points, as the kernels take them."""

WORTH = 1 << 26
"""Weights from which on loading the kernels takes less time than they save."""

STORED = {4: "uint8", 8: "uint16"}
"""What holds a pair of codes."""

MODE_SETS = tuple(frozenset(mode for mode, tried in zip(MODES, (n & 1, n & 2), strict=True) if tried) for n in range(4))


class _Scratch(local):
    """What a thread hands to the kernels besides operands: the modes to try, and room to work in by two names."""

    def __init__(self) -> None:
        import numpy as np

        self.tried = np.empty(2, np.int64)
        self._row = 0
        self.make_room(1)

    def make_room(self, row: int) -> None:
        """For rows of `row` pairs."""
        import numpy as np

        from verify.kernels import BATCH

        if row > self._row:
            self._row = max(row, BATCH)
            self.spare = np.empty((3, 2 * self._row), np.uint16)
            self.words = self.spare.view(np.uint32)


_scratch = lru_cache(maxsize=1)(_Scratch)


@lru_cache(maxsize=1)
def are_there() -> bool:
    """Can the kernels be loaded? Not without numba, nor where it finds no folder to keep them in."""
    try:
        import verify.kernels  # noqa: F401
    except (ImportError, RuntimeError):
        return False
    return True


def is_worth(weights: int) -> bool:
    """Are there so many weights to look at that loading the kernels pays, and are they there?"""
    return weights >= WORTH and are_there()


def is_supported(job: Job) -> bool:
    """Do the kernels know the job's dtypes and groups? They trust that there are as many bytes as these call for."""
    parts, grid = job.module.parts, job.grid
    if not job.origin.dtype == parts["weight_scale"].dtype == "BF16" or grid.group % 32:
        return False
    expected = {"weight_packed": job.weights * grid.bits // 8, "weight_scale": job.weights // grid.group * 2}
    if not grid.symmetric:
        zeros = parts["weight_zero_point"]
        expected["weight_zero_point"] = zeros.shape[0] * zeros.shape[1] * 4
    sizes_are_right = all(parts[name].nbytes == nbytes for name, nbytes in expected.items())
    return sizes_are_right and job.origin.nbytes == job.weights * 2


def judge(job: Job, piece: Piece, modes: frozenset[Mode]) -> Iterator[Outcome]:
    """As `reference.judge`, to which pieces are left with scales that are none, or near the ends of F32."""
    import numpy as np

    from verify.kernels import judge as judge_blocks

    weight, codes, scale, zeros = operands(job, piece)
    scratch, groups = _scratch(), len(scale) // piece.rows
    scratch.make_room(len(weight) // piece.rows)
    scratch.tried[:] = [mode in modes for mode in MODES]
    found = np.empty((len(piece.blocks), 4), np.int64)
    room = scratch.tried, scratch.spare, scratch.words, found
    if judge_blocks(weight, codes, scale, zeros, groups, piece.height, *room):
        yield from reference.judge(job, piece, modes)
        return
    sums = None
    for number, (fp32, eager, partly, filled) in enumerate(found.tolist()):
        exact = MODE_SETS[fp32 + 2 * eager]
        if exact:
            yield Outcome(True, exact, filled=bool(filled))
        else:
            sums = sums or _sums(job, piece)
            yield Outcome(True, exact, bool(partly), bool(filled), *sums[number])


def operands(job: Job, piece: Piece) -> Operands:
    """The bytes of a piece as the kernels take them."""
    import numpy as np

    zeros = None
    if piece.zeros is not None:
        zeros = unpack_columns(piece.zeros, job.grid.bits, piece.rows).astype(np.int8).reshape(-1)
    return piece.weight.view(np.uint32), piece.packed.view(STORED[job.grid.bits]), piece.scale.view(np.uint16), zeros


def _sums(job: Job, piece: Piece) -> list[list[float]]:
    """Squared norms of error, weight and scales of each block."""
    import numpy as np

    from verify.distances import distances

    weight, codes, scale, zeros = operands(job, piece)
    sums = np.empty((len(piece.blocks), 3))
    distances(weight, codes, scale, zeros, len(scale) // piece.rows, piece.height, sums)
    rows: list[list[float]] = sums.tolist()
    return rows


def count(job: Job, piece: Piece) -> Counts:
    """As `reference.count`."""
    import numpy as np

    from verify.distances import tally
    from verify.kernels import PAIRS

    weight, codes, scale, zeros = operands(job, piece)
    ends, steps = np.zeros(1, np.int64), np.zeros((4, BINS), np.int64)
    tally(weight, codes, scale, zeros, SPAN, np.empty(2 * PAIRS, np.int32), ends, steps)
    error, size, _ = map(sum, zip(*_sums(job, piece), strict=True))
    return Counts(error, size, int(ends[0]), steps.sum(axis=0).tolist())
