"""The MTP head's dense tensors, where there is no base to compare them with: are they weights at all?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from checkpoint import TensorRef
from checkpoint.dtypes import FLOATS
from verify.blocks import chunks, each, read_bytes, sampled, total_bytes
from verify.case import Case
from verify.claims import is_draft
from verify.gathering import gather
from verify.registry import Hit, rule

if TYPE_CHECKING:
    from verify.arithmetic import Floats

LARGEST_NORM = 1000.0
"""Beyond any weight of a norm seen in a release; bytes that are no weights read as far more, or as nothing."""


@rule(
    "M07",
    "the MTP head holds weights: not constant, norms of sane size",
    cost="content",
    evidence="llm-compressor#1630: a head saved without its values",
    remedy="ckpt graft-mtp SRC --base BASE",
)
def draft_alive(case: Case) -> Iterable[Hit]:
    """Where there is a base, M06 compares with it. What is not finite is the matter of N02."""
    if case.base is not None:
        return
    packed = {ref.name for module in case.packed for ref in module.parts.values()}
    refs = {
        name: ref
        for name, ref in case.checkpoint.tensors.items()
        if is_draft(case, name) and name not in packed and ref.dtype in FLOATS and ref.nbytes > 4
    }
    chosen = [refs[name] for name in sampled(case, list(refs))]
    faults = each(case, "MTP head", chosen, lambda ref: _fault(case, ref), total_bytes(chosen))
    yield from gather(filter(None, faults), consequence="no draft is accepted, and no engine can tell")


def _fault(case: Case, ref: TensorRef) -> tuple[str, str] | None:
    """What is wrong with a tensor, read in chunks until it is known not to be constant."""
    import numpy as np

    first: float | None = None
    for start, end in chunks(case, ref.nbytes):
        values = _values(case, ref, start, end)
        if len(ref.shape) == 1 and float(np.abs(values).max()) > LARGEST_NORM:
            return None if not np.isfinite(values).all() else (ref.name, f"values beyond {LARGEST_NORM:g}")
        first = float(values[0]) if first is None else first
        if not (values == first).all():
            return None
    return ref.name, f"every value is {first:g}"


def _values(case: Case, ref: TensorRef, start: int, end: int) -> Floats:
    from verify.arithmetic import to_float32

    return to_float32(read_bytes(case, ref, start, end), ref.dtype)
