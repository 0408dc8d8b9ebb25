"""The bytes of a packed module beside those of the weight it was made of, read a few blocks of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkpoint import TensorRef
from checkpoint.files import scratch
from verify.blocks import row_blocks
from verify.case import Case

if TYPE_CHECKING:
    from verify.arithmetic import Bytes
    from verify.recompute import Job

BLOCKS = 4
"""Blocks in a piece: few enough for a core's cache, enough to be worth the calls that read and judge them."""

ALIGNED = 64

Rows = tuple[int, int]
"""(first row, end row)"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of the rows of `blocks`, one row after the other; packed zero points as words [words, groups, 4].

    `zeros` is None where symmetric.
    """

    blocks: tuple[Rows, ...]
    weight: Bytes
    packed: Bytes
    scale: Bytes
    zeros: Bytes | None

    @property
    def rows(self) -> int:
        return self.blocks[-1][1] - self.blocks[0][0]

    @property
    def height(self) -> int:
        """Rows of a block but the last, which may have fewer."""
        return self.blocks[0][1] - self.blocks[0][0]

    def part(self, number: int, bits: int) -> Piece:
        """One of the blocks."""
        first, (start, end) = self.blocks[0][0], self.blocks[number]

        def cut(data: Bytes) -> Bytes:
            width = len(data) // self.rows
            return data[(start - first) * width : (end - first) * width]

        words = slice((start - first) * bits // 32, -(-(end - first) * bits // 32))
        zeros = None if self.zeros is None else self.zeros[words]
        return Piece((self.blocks[number],), cut(self.weight), cut(self.packed), cut(self.scale), zeros)


def pieces(case: Case, job: Job) -> Iterator[Piece]:
    """All rows of the module, at level `sample` the first block; a piece is gone once the thread asks for the next."""
    blocks = tuple(row_blocks(case, *job.origin.shape))
    for first in range(0, len(blocks), BLOCKS):
        yield read_piece(case, job, job.origin, blocks[first : first + BLOCKS], scratch)


def read_piece(
    case: Case, job: Job, origin: TensorRef, blocks: tuple[Rows, ...], memory: Callable[[int], memoryview]
) -> Piece:
    """The module's part of these rows, which follow one another, beside that of `origin`.

    The first of them divides by `blocks.ROWS`. `memory` gives the bytes to read to.
    """
    spans = _spans(job, origin, blocks[0][0], blocks[-1][1])
    places, room = [], 0
    for _, _, nbytes in spans:
        places.append(room)
        room += -(-nbytes // ALIGNED) * ALIGNED
    buffer = memory(room)
    for (ref, offset, nbytes), place in zip(spans, places, strict=True):
        case.files.read_into(ref.path, ref.offset + offset, buffer[place : place + nbytes])
    return _piece(blocks, buffer, [(place, span[2]) for place, span in zip(places, spans, strict=True)], job)


def _spans(job: Job, origin: TensorRef, start: int, end: int) -> list[tuple[TensorRef, int, int]]:
    """(tensor, offset in it, bytes) of the weight, the packed words, the scales and, if there are any, zero points."""
    parts, rows = job.module.parts, job.origin.shape[0]
    spans = []
    for ref in (origin, parts["weight_packed"], parts["weight_scale"]):
        width = ref.nbytes // rows
        spans.append((ref, start * width, (end - start) * width))
    if not job.grid.symmetric:
        zeros, bits = parts["weight_zero_point"], job.grid.bits
        width, first = zeros.shape[1] * 4, start * bits // 32
        spans.append((zeros, first * width, (-(-end * bits // 32) - first) * width))
    return spans


def _piece(blocks: tuple[Rows, ...], buffer: memoryview, places: list[tuple[int, int]], job: Job) -> Piece:
    import numpy as np

    data = np.frombuffer(buffer, np.uint8)
    weight, packed, scale, *zeros = (data[place : place + nbytes] for place, nbytes in places)
    groups = job.module.parts["weight_scale"].shape[1]
    return Piece(blocks, weight, packed, scale, zeros[0].reshape(-1, groups, 4) if zeros else None)
