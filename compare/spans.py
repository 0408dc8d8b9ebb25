"""A pair cut into runs of rows that are read at a time, and the bytes that these are on either side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from checkpoint import TensorRef
from compare.pairing import Pair
from compare.weights import DENSE, SHAPE, Weight

ROWS = 8
"""Rows of a span are a multiple of this, so that packed zero points of 4 and 8 bits divide into spans, too."""

ELEMENTS = 1 << 20
"""Weights in a span, at most: enough to be worth a read."""

LEAST = 1 << 14

BYTES = 32
"""Memory that a weight takes while it is compared: what is stored on both sides, their values, and what is made of
these."""


class Span(NamedTuple):
    """Rows [first, end) of a pair's matrix."""

    pair: Pair
    first: int
    end: int


class Extent(NamedTuple):
    """Bytes of a part of a weight: `nbytes` at `offset` of the tensor `ref`, whose suffix is `part`."""

    part: str
    ref: TensorRef
    offset: int
    nbytes: int


def elements_for(memory: int, workers: int) -> int:
    """Weights in a span such that `workers` threads stay within `memory` bytes."""
    return min(ELEMENTS, max(LEAST, memory // (workers * BYTES)))


def buffer_of(elements: int) -> int:
    """Memory in bytes that a thread takes for a span of so many weights."""
    return elements * BYTES


def height(columns: int, elements: int) -> int:
    """Rows of a span of at most `elements` weights, but `ROWS` at least."""
    return max(ROWS, elements // max(columns, 1) // ROWS * ROWS)


def spans_of(pair: Pair, elements: int) -> Iterator[Span]:
    """All rows of a pair in order; one span without rows where there are none, so that it is judged, too."""
    rows, columns = pair.matrix
    step = height(columns, elements)
    for first in range(0, max(rows, 1), step):
        yield Span(pair, first, min(first + step, rows))


def extents(span: Span, weight: Weight) -> list[Extent]:
    """What there is to read of one side of a span."""
    rows = max(span.pair.matrix[0], 1)
    if not weight.is_packed:
        return [_rows_of(DENSE, weight.parts[DENSE], rows, span.first, span.end)]
    found = [
        _rows_of(part, weight.parts[part], rows, span.first, span.end) for part in ("weight_packed", "weight_scale")
    ]
    zeros = weight.parts.get("weight_zero_point")
    if zeros is not None and weight.grid is not None:
        width, bits = zeros.shape[1] * 4, weight.grid.bits
        first, end = span.first * bits // 32, -(-span.end * bits // 32)
        found.append(Extent("weight_zero_point", zeros, first * width, (end - first) * width))
    if span.first == 0 and span.pair.is_same_form and SHAPE in weight.parts:
        shape = weight.parts[SHAPE]
        found.append(Extent(SHAPE, shape, 0, shape.nbytes))
    return found


def _rows_of(part: str, ref: TensorRef, rows: int, first: int, end: int) -> Extent:
    start = first * ref.nbytes // rows
    return Extent(part, ref, start, end * ref.nbytes // rows - start)
