"""What is in the tensors, as far as it can be judged without arithmetic: finite, not constant, equal to the base."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING

from checkpoint import TensorRef
from checkpoint.dtypes import FLOATS
from verify.blocks import chunks, each, read_bytes, read_rows, sampled, total_bytes
from verify.case import Case
from verify.dense import finite_asked, is_not_finite, pairs_of
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

SHAPES = {"I64": Struct("<2q"), "I32": Struct("<2i")}

Fault = tuple[str, str]


@rule(
    "T06",
    "weight_shape holds the shape of the weight",
    cost="content",
    evidence="transformers unpacks by it",
    remedy="ckpt quantize BASE",
)
def shape_contents(case: Case) -> Iterable[Hit]:
    # Not by several threads: a few bytes are read sooner than handed over.
    faults = (_shape_fault(case, module) for module in case.packed if _holds_shape(module))
    yield from gather(filter(None, faults), consequence="transformers unpacks to another shape", remedy=REPACK)


def _holds_shape(module: Packed) -> bool:
    ref = module.parts.get("weight_shape")
    return ref is not None and ref.dtype in SHAPES and ref.shape == (2,) and module.size is not None


def _shape_fault(case: Case, module: Packed) -> Fault | None:
    ref = module.parts["weight_shape"]
    stored = SHAPES[ref.dtype].unpack(case.files.read_tensor(ref))
    if stored == module.size:
        return None
    return ref.name, f"holds {list(stored)}, the weight is {list(module.size or ())}"


@rule(
    "N01",
    "scales are finite and positive",
    cost="content",
    evidence="compressed-tensors#832: only token 0",
    remedy="ckpt quantize BASE",
)
def scales(case: Case) -> Iterable[Hit]:
    refs = {m.name: m.parts["weight_scale"] for m in case.packed if "weight_scale" in m.parts}
    sound = _judged_sound(case)
    names = (name for name in sampled(case, list(refs)) if name not in sound)
    chosen = [refs[name] for name in names if refs[name].dtype in FLOATS]
    faults = each(case, "scales", chosen, lambda ref: _scale_fault(case, ref), total_bytes(chosen))
    yield from gather(filter(None, faults), consequence="NaN, or the same token for ever", remedy=REPACK)


def _judged_sound(case: Case) -> set[str]:
    """The modules all of whose scales were read, and found sound, when they were compared with the base."""
    if case.level != "full" or not case.running & {"N04", "N05"}:
        return set()
    return {one.verdict.job.name for one in case.judged if one.verdict.kind != "unscaled"}


def _scale_fault(case: Case, ref: TensorRef) -> Fault | None:
    """The first fault in the tensor, read in chunks."""
    for start, end in chunks(case, ref.nbytes):
        if found := _fault_of_scales(read_bytes(case, ref, start, end), ref.dtype):
            return ref.name, found
    return None


def _fault_of_scales(raw: Bytes, dtype: str) -> str | None:
    from verify.arithmetic import to_float32

    if is_not_finite(raw, dtype):
        return "holds NaN or infinity"
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
    faults = ((name, case.dense_found[name].fault) for name in finite_asked(case))
    found = ((name, fault) for name, fault in faults if fault)
    yield from gather(found, consequence="NaN in every answer", remedy=GRAFT)


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
    starts = [bytes(read_bytes(case, refs[name], 0, PREFIX)) for name in names]
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
    pairs = pairs_of(case, draft=draft)
    chosen = sampled(case, pairs)
    differences = ((name, case.dense_found[name].difference) for name in chosen)
    faults = [(name, difference) for name, difference in differences if difference]
    yield from gather(faults, consequence=consequence)
    if chosen and not faults:
        case.notes.fact(f"{len(chosen):,} of {len(pairs):,} {what} compared: equal to the base, bit for bit")


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
    nbytes = total_bytes(module.parts["weight_packed"] for module in chosen)
    faults = each(case, "padding", chosen, lambda module: _padding_fault(case, module), nbytes)
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
