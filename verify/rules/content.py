"""What is in the tensors, as far as it can be judged without arithmetic: finite, not constant, equal to the base."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from checkpoint import TensorRef
from checkpoint.dtypes import FLOATS, itemsize
from verify.blocks import chunks, each, read_bytes, read_rows, sampled
from verify.case import Case
from verify.claims import is_draft
from verify.descent import EXPERT
from verify.gathering import gather
from verify.packed import Packed
from verify.registry import Hit, rule

if TYPE_CHECKING:
    from verify.arithmetic import Bytes

GRAFT = "ckpt graft SRC --from BASE --tensors NAME"
REPACK = "Pack the module again from the base: ckpt quantize BASE"
PREFIX = 256
"""Bytes of packed weights that no two experts have in common by chance."""

EXPONENTS = {"BF16": ("uint16", 0x7F80), "F16": ("uint16", 0x7C00), "F32": ("uint32", 0x7F800000)}
"""The exponent's bits, all set in infinities and NaNs."""

Fault = tuple[str, str]


@rule(
    "T06",
    "weight_shape holds the shape of the weight",
    cost="content",
    evidence="transformers unpacks by it",
    remedy="ckpt quantize BASE",
)
def shape_contents(case: Case) -> Iterable[Hit]:
    modules = [module for module in case.packed if _holds_shape(module)]
    faults = each(case, "shapes", modules, lambda module: _shape_fault(case, module))
    yield from gather(filter(None, faults), consequence="transformers unpacks to another shape", remedy=REPACK)


def _holds_shape(module: Packed) -> bool:
    ref = module.parts.get("weight_shape")
    return ref is not None and ref.dtype in ("I64", "I32") and ref.shape == (2,) and module.size is not None


def _shape_fault(case: Case, module: Packed) -> Fault | None:
    import numpy as np

    ref = module.parts["weight_shape"]
    stored = read_bytes(case, ref, 0, ref.nbytes).view(np.int64 if ref.dtype == "I64" else np.int32).tolist()
    expected = list(module.size or ())
    return None if stored == expected else (ref.name, f"holds {stored}, the weight is {expected}")


@rule(
    "N01",
    "scales are finite and positive",
    cost="content",
    evidence="compressed-tensors#832: only token 0",
    remedy="ckpt quantize BASE",
)
def scales(case: Case) -> Iterable[Hit]:
    refs = {m.name: m.parts["weight_scale"] for m in case.packed if "weight_scale" in m.parts}
    chosen = [refs[name] for name in sampled(case, list(refs)) if refs[name].dtype in FLOATS]
    faults = each(case, "scales", chosen, lambda ref: _value_fault(case, ref, _scale_fault))
    yield from gather(filter(None, faults), consequence="NaN, or the same token for ever", remedy=REPACK)


def _scale_fault(raw: Bytes, dtype: str) -> str | None:
    from verify.arithmetic import to_float32

    if found := _not_finite(raw, dtype):
        return found
    values = to_float32(raw, dtype)
    return "a scale is 0" if (values == 0).any() else "a scale is negative" if (values < 0).any() else None


@rule(
    "N02",
    "dense tensors are finite",
    cost="content",
    evidence="compressed-tensors#832",
    remedy="ckpt graft SRC --from BASE --tensors NAME",
)
def finite(case: Case) -> Iterable[Hit]:
    refs = _dense(case)
    chosen = [refs[name] for name in sampled(case, list(refs)) if refs[name].dtype in EXPONENTS]
    faults = each(case, "dense tensors", chosen, lambda ref: _value_fault(case, ref, _not_finite))
    yield from gather(filter(None, faults), consequence="NaN in every answer", remedy=GRAFT)


def _not_finite(raw: Bytes, dtype: str) -> str | None:
    kind, exponent = EXPONENTS[dtype]
    return "holds NaN or infinity" if ((raw.view(kind) & exponent) == exponent).any() else None


def _value_fault(case: Case, ref: TensorRef, judge: Callable[[Bytes, str], str | None]) -> Fault | None:
    """The first fault in the tensor, read in chunks."""
    for start, end in chunks(case, ref.nbytes):
        if found := judge(read_bytes(case, ref, start, end), ref.dtype):
            return ref.name, found
    return None


@rule(
    "N03",
    "packed weights differ, from each other and within",
    cost="content",
    evidence="sglang#35358: dead experts",
    remedy="ckpt quantize BASE",
)
def distinct(case: Case) -> Iterable[Hit]:
    """Where there is a base, N04 compares with it, and constant is right if the base's are."""
    if case.base is not None:
        return
    refs = {m.name: m.parts["weight_packed"] for m in case.packed if "weight_packed" in m.parts}
    names = [name for name in refs if refs[name].nbytes >= PREFIX]
    starts = list(each(case, "packed weights", names, lambda name: bytes(read_bytes(case, refs[name], 0, PREFIX))))
    constant = {name for name, start in zip(names, starts, strict=True) if start == start[:4] * (PREFIX // 4)}
    faults = ((name, "every weight is the same") for name in sorted(constant))
    yield from gather(faults, consequence="the module does nothing", remedy=REPACK)
    yield from gather(_twins(names, starts, constant), consequence="experts answer alike", remedy=REPACK)


def _twins(names: Sequence[str], starts: Sequence[bytes], constant: set[str]) -> Iterator[Fault]:
    """Experts of one layer that begin with the same packed weights."""
    seen: dict[tuple[str, str, bytes], str] = {}
    for name, start in zip(names, starts, strict=True):
        match = EXPERT.fullmatch(name)
        if match and name not in constant:
            first = seen.setdefault((match["owner"], match["part"], start), name)
            if first != name:
                yield name, "the same weights as another expert of the layer"


@rule(
    "N06",
    "dense tensors are the base's",
    cost="content",
    needs_base=True,
    evidence="exporters write norms back rounded (llm-compressor's norm calibration), or cast F32 state",
    remedy=GRAFT,
)
def equal(case: Case) -> Iterable[Hit]:
    return _compared(case, "dense tensors", draft=False, consequence="the model computes something else")


@rule(
    "M06",
    "the MTP head is the base's",
    cost="content",
    needs_base=True,
    evidence="an MTP head of another revision, or cast: fewer drafts are accepted",
    remedy="ckpt graft-mtp SRC --base BASE",
)
def draft_equal(case: Case) -> Iterable[Hit]:
    """Its dense tensors; N04 looks at packed ones."""
    return _compared(case, "dense tensors of the MTP head", draft=True, consequence="fewer drafts are accepted")


def _compared(case: Case, what: str, *, draft: bool, consequence: str) -> Iterator[Hit]:
    """Dense tensors bit by bit against the base, of the draft head or of all else."""
    wanted = case.inventory.wanted if case.inventory else {}
    pairs = {
        name: (ref, origin)
        for name, ref in _dense(case).items()
        if name in wanted and (origin := wanted[name].origin) and _alike(ref, origin) and is_draft(case, name) is draft
    }
    chosen = [pairs[name] for name in sampled(case, list(pairs))]
    faults = [fault for fault in each(case, "base", chosen, lambda pair: _difference(case, *pair)) if fault]
    yield from gather(faults, consequence=consequence)
    if chosen and not faults:
        case.notes.fact(f"{len(chosen):,} of {len(pairs):,} {what} compared: equal to the base, bit for bit")


def _alike(ref: TensorRef, origin: TensorRef) -> bool:
    """I02 and I03 report tensors of another shape or dtype."""
    return ref.dtype == origin.dtype and ref.shape == origin.shape


def _difference(case: Case, ref: TensorRef, origin: TensorRef) -> Fault | None:
    import numpy as np

    for start, end in chunks(case, ref.nbytes):
        ours, theirs = read_bytes(case, ref, start, end), read_bytes(case, origin, start, end)
        if not np.array_equal(ours, theirs):
            return ref.name, f"differs from the base {_how_much(ours, theirs, ref.dtype)}".rstrip()
    return None


def _how_much(ours: Bytes, theirs: Bytes, dtype: str) -> str:
    """Whether the difference looks like rounding or like other weights."""
    import numpy as np

    from verify.arithmetic import to_float32

    if dtype not in FLOATS:
        return ""
    left, right = to_float32(ours, dtype), to_float32(theirs, dtype)
    size = float(np.abs(right).max())
    error = float(np.abs(left - right).max())
    return "by rounding" if error <= size / 64 else "beyond rounding"


@rule(
    "N08",
    "bits behind the last weight of a row are zero",
    severity="warning",
    cost="content",
    evidence="pack_to_int32",
    remedy="ckpt quantize BASE",
)
def padding(case: Case) -> Iterable[Hit]:
    modules = {m.name: m for m in case.packed if _is_padded(m)}
    chosen = [modules[name] for name in sampled(case, list(modules))]
    faults = each(case, "padding", chosen, lambda module: _padding_fault(case, module))
    yield from gather(filter(None, faults), consequence="written by something that packs otherwise", remedy=REPACK)


def _is_padded(module: Packed) -> bool:
    scheme, size, packed = module.scheme, module.size, module.parts.get("weight_packed")
    if scheme is None or size is None or packed is None or scheme.num_bits not in (4, 8):
        return False
    return size[1] * scheme.num_bits % 32 != 0 and packed.shape == (size[0], scheme.packed_columns(size[1]))


def _padding_fault(case: Case, module: Packed) -> Fault | None:
    from verify.arithmetic import spill
    from verify.blocks import row_blocks

    ref, size, scheme = module.parts["weight_packed"], module.size, module.scheme
    if size is None or scheme is None:
        return None
    for start, end in row_blocks(case, *size):
        if spill(read_rows(case, ref, start, end), scheme.num_bits, size[1]):
            return ref.name, "bits are set behind the last weight of a row"
    return None


def _dense(case: Case) -> dict[str, TensorRef]:
    """Everything that is no part of a packed module."""
    parts = {ref.name for module in case.packed for ref in module.parts.values()}
    return {name: ref for name, ref in case.checkpoint.tensors.items() if name not in parts and itemsize(ref.dtype)}
