"""The spans of pairs, read and judged: are their bytes equal, and if not, how far apart are their values?"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from checkpoint import Files
from compare.measures import Sums
from compare.reading import Piece, read
from compare.spans import Extent, Span, extents
from compare.weights import SHAPE

if TYPE_CHECKING:
    from compare.reference import Raw
    from verify.arithmetic import Bytes

SLICE = 1 << 18
"""Bytes that are compared in one go, a multiple of 8."""


class Found(NamedTuple):
    """What came of a span. `sums` are None where its bytes are equal, or where values cannot be measured;
    `is_misshapen` says that the tensors `weight_shape` of both differ, whatever the values are."""

    is_equal: bool
    sums: Sums | None
    is_misshapen: bool = False


class Task(NamedTuple):
    """A span to be judged. One that `is_known` is equal, and is measured since other spans of its pair differ."""

    span: Span
    is_known: bool = False


def judge(files: Files, tasks: Sequence[Task], by: ModuleType) -> list[Found]:
    """Read `tasks` together and judge each; `by` is `compare.reference` or `compare.compiled`."""
    wanted = [_extents(task) for task in tasks]
    data = iter(read(files, [_piece(one) for both in wanted for side in both for one in side]))
    found = []
    for task, both in zip(tasks, wanted, strict=True):
        left, right = ({one.part: _array(next(data)) for one in side} for side in both)
        found.append(_judged(task, left, right, by))
    return found


def nbytes_of(task: Task) -> int:
    """Bytes that are read for it."""
    return sum(one.nbytes for side in _extents(task) for one in side)


def _extents(task: Task) -> tuple[list[Extent], list[Extent]]:
    """What is read of both sides: of what is equal one side alone."""
    pair = task.span.pair
    ours = [] if task.is_known else extents(task.span, pair.a)
    return ours, extents(task.span, pair.b)


def _piece(one: Extent) -> Piece:
    return Piece(one.ref.path, one.ref.offset + one.offset, one.nbytes)


def _judged(task: Task, left: Raw, right: Raw, by: ModuleType) -> Found:
    pair = task.span.pair
    if task.is_known:
        return Found(True, _measured(task.span, right, right, by))
    differing = [part for part in left if not (pair.is_same_form and _is_equal(left[part], right[part]))]
    if not differing:
        return Found(True, None)
    misshapen = pair.is_same_form and SHAPE in differing
    return Found(False, None if pair.why else _measured(task.span, left, right, by), misshapen)


def _measured(span: Span, a: Raw, b: Raw, by: ModuleType) -> Sums:
    pair = span.pair
    sums: Sums = by.measure(pair.a, a, pair.b, b, span.end - span.first, pair.matrix[1])
    return sums


def _is_equal(left: Bytes, right: Bytes) -> bool:
    """A little at a time: what differs mostly differs at once."""
    import numpy as np

    words = len(left) // 8 * 8
    for first in range(0, words, SLICE):
        end = min(first + SLICE, words)
        if not np.array_equal(left[first:end].view(np.uint64), right[first:end].view(np.uint64)):
            return False
    return np.array_equal(left[words:], right[words:])


def _array(data: memoryview) -> Bytes:
    """The bytes at a place from which any dtype can be viewed."""
    import numpy as np

    array = np.frombuffer(data, np.uint8)
    address = array.__array_interface__["data"][0]
    return array if address % 8 == 0 else array.copy()
