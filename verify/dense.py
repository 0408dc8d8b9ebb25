"""Dense tensors, each read once: is it finite, and is it the base's?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from checkpoint import TensorRef
from checkpoint.dtypes import FLOATS, itemsize
from checkpoint.files import scratch
from verify.blocks import chunks, each, read_bytes, sampled, total_bytes
from verify.case import Case
from verify.claims import is_draft

if TYPE_CHECKING:
    from verify.arithmetic import Bytes

EXPONENTS = {"BF16": ("uint16", 0x7F80), "F16": ("uint16", 0x7C00), "F32": ("uint32", 0x7F800000)}
"""The exponent's bits, all set in infinities and NaNs."""

SLICE = 1 << 19
"""Bytes that are looked at in one go, a multiple of 8: they and what is made of them stay in a core's cache."""


class Dense(NamedTuple):
    """What was found of one tensor: `fault` in its values, `difference` from the base; None is for none."""

    fault: str | None
    difference: str | None


class Task(NamedTuple):
    """A tensor to be looked at: for values that are none if `finite`, and beside `origin` if there is one."""

    ref: TensorRef
    finite: bool
    origin: TensorRef | None


def look_at_dense(case: Case) -> dict[str, Dense]:
    """Every tensor that a running rule asks about: N02 for its values, N06 and M06 for the base's."""
    tasks = sorted(_tasks(case), key=lambda task: task.ref.nbytes, reverse=True)  # the longest must not come last
    found = each(case, "dense tensors", tasks, lambda task: _look(case, task), total_bytes(task.ref for task in tasks))
    return {task.ref.name: one for task, one in zip(tasks, found, strict=True)}


def _tasks(case: Case) -> Iterator[Task]:
    asked = case.running or frozenset({"N02", "N06", "M06"})
    finite = set(finite_asked(case)) if "N02" in asked else set()
    rest = set(sampled(case, pairs_of(case, draft=False))) if "N06" in asked else set()
    draft = set(sampled(case, pairs_of(case, draft=True))) if "M06" in asked else set()
    for name, ref in case.dense.items():
        compared = name in rest or name in draft
        if name in finite or compared:
            yield Task(ref, name in finite, case.pairs[name] if compared else None)


def dense_tensors(case: Case) -> dict[str, TensorRef]:
    """Everything that is no part of a packed module."""
    parts = {ref.name for module in case.packed for ref in module.parts.values()}
    return {name: ref for name, ref in case.checkpoint.tensors.items() if name not in parts and itemsize(ref.dtype)}


def paired(case: Case) -> dict[str, TensorRef]:
    """Where in the base the dense tensors are that it has in the same dtype and shape; I02 and I03 report others."""
    wanted = case.wanted or {}
    origins = ((name, ref, wanted[name].origin) for name, ref in case.dense.items() if name in wanted)
    return {name: one for name, ref, one in origins if one and (one.dtype, one.shape) == (ref.dtype, ref.shape)}


def finite_asked(case: Case) -> list[str]:
    """The tensors whose values are looked at: at level `sample` some."""
    return [name for name in sampled(case, list(case.dense)) if case.dense[name].dtype in EXPONENTS]


def pairs_of(case: Case, *, draft: bool) -> list[str]:
    """Tensors that can be compared: those of the draft head, or all others."""
    return [name for name in case.pairs if is_draft(case, name) is draft]


def _look(case: Case, task: Task) -> Dense:
    """Up to the first slice with a fault, and to the first chunk that differs."""
    fault = difference = None
    for start, end, chunk in _slices(case, task.ref.nbytes):
        finite, origin = task.finite and fault is None, task.origin if difference is None else None
        if not finite and origin is None:
            break
        ours, theirs = _read(case, task.ref, origin, start, end)
        if finite and is_not_finite(ours, task.ref.dtype):
            fault = "holds NaN or infinity"
        if origin is not None and not _is_equal(ours, theirs):
            difference = _difference(case, task.ref, origin, chunk)
    return Dense(fault, difference)


def _slices(case: Case, nbytes: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """(first byte, end byte, chunk) of each slice of the chunks to look at."""
    for start, end in chunks(case, nbytes):
        for first in range(start, end, SLICE):
            yield first, min(first + SLICE, end), (start, end)


def _read(case: Case, ref: TensorRef, origin: TensorRef | None, start: int, end: int) -> tuple[Bytes, Bytes]:
    """Bytes of a tensor and of its origin, if there is one, in the thread's scratch."""
    import numpy as np

    memory = scratch(2 * SLICE)
    both = memory[: end - start], memory[SLICE : SLICE + end - start]
    case.files.read_into(ref.path, ref.offset + start, both[0])
    if origin is not None:
        case.files.read_into(origin.path, origin.offset + start, both[1])
    return np.frombuffer(both[0], np.uint8), np.frombuffer(both[1], np.uint8)


def is_not_finite(raw: Bytes, dtype: str) -> bool:
    """Is there a NaN or an infinity among these values of a dtype in `EXPONENTS`?"""
    kind, exponent = EXPONENTS[dtype]
    values = raw.view(kind)
    # Without their signs, nothing that is finite is as large as an infinity, and only NaN is larger.
    return bool((values & values.dtype.type(2 ** (8 * values.itemsize - 1) - 1)).max(initial=0) >= exponent)


def _is_equal(ours: Bytes, theirs: Bytes) -> bool:
    import numpy as np

    words = len(ours) // 8 * 8
    whole = np.array_equal(ours[:words].view(np.uint64), theirs[:words].view(np.uint64))
    return whole and np.array_equal(ours[words:], theirs[words:])


def _difference(case: Case, ref: TensorRef, origin: TensorRef, chunk: tuple[int, int]) -> str:
    """Of a chunk that differs: does it look like rounding, or like other weights?"""
    import numpy as np

    from verify.arithmetic import to_float32

    if ref.dtype not in FLOATS:
        return "differs from the base"
    left, right = (to_float32(read_bytes(case, one, *chunk), ref.dtype) for one in (ref, origin))
    error, size = float(np.abs(left - right).max()), float(np.abs(right).max())
    return f"differs from the base {'by rounding' if error <= size / 64 else 'beyond rounding'}"
