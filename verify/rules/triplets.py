"""Packed modules: their parts, dtypes and shapes, against the config group that they belong to.

A module of N rows and K columns, packed to b bits in groups of g, is `weight_packed` I32 [N, ceil(K*b/32)],
`weight_scale` [N, K/g] (one column per row for the strategy `channel`), `weight_shape` I64 [2] and, if asymmetric,
`weight_zero_point` I32 [ceil(N*b/32), K/g].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checkpoint.dtypes import FLOATS
from verify.case import Case
from verify.claims import FUSED_PACKED, VISION
from verify.gathering import gather
from verify.groups import Scheme
from verify.packed import Packed
from verify.registry import Hit, rule
from verify.rules.config import labels

REPACK = "Pack the module again from the base: ckpt quantize BASE"
PARTS = ("weight_packed", "weight_scale", "weight_shape")
WITHOUT = {
    "weight_packed": "nothing to compute with: uninitialised memory in vLLM, random values in transformers",
    "weight_scale": "vLLM loads without a word and computes garbage, transformers gives NaN",
    "weight_shape": "transformers raises or works by chance; vLLM does not miss it",
}
SILENT_CORNER = "vLLM copies a too small expert tensor into a corner of its buffer without a word, else it raises"


@rule(
    "T01",
    "a packed module has all its parts",
    evidence="vllm fills nothing in; transformers only lists MISSING",
    remedy="ckpt quantize BASE",
)
def complete(case: Case) -> Iterable[Hit]:
    named = case.named_modules
    for part in PARTS:
        faults = (
            (f"{module.name}.{part}", "missing")
            for module in case.packed
            if part not in named[module.name].tensors and not FUSED_PACKED.fullmatch(f"{module.name}.{part}")
        )
        yield from gather(faults, consequence=WITHOUT[part], remedy=REPACK)


@rule(
    "T02",
    "no module is both dense and packed",
    evidence="vllm AutoWeightsLoader: no parameter named weight",
    remedy="Remove the stale one",
)
def both(case: Case) -> Iterable[Hit]:
    faults = (
        (module.name, f"weight beside {', '.join(sorted(set(module.tensors) - {'weight', 'bias'}))}")
        for module in case.modules.values()
        if module.packed and "weight" in module.tensors
    )
    yield from gather(faults, consequence="engines raise, or take one of the two", remedy="Remove the stale one")


@rule(
    "T03",
    "the parts of a packed module have the right dtypes",
    evidence="vllm compressed_tensors_wNa16.py",
    remedy="ckpt quantize BASE",
)
def dtypes(case: Case) -> Iterable[Hit]:
    allowed = {
        "weight_packed": {"I32"},
        "weight_scale": FLOATS,
        "weight_shape": {"I64"},
        "weight_zero_point": {"I32"},
    }
    wrong = [
        (ref.name, f"{ref.dtype}, expected {' or '.join(sorted(allowed[part]))}")
        for module in case.packed
        for part in allowed
        if (ref := module.parts.get(part)) and ref.dtype not in allowed[part]
    ]
    shapes = [fault for fault in wrong if fault[1].startswith("I32") and fault[0].endswith("weight_shape")]
    consequence = "bytes are cast or read as something else"
    yield from gather((fault for fault in wrong if fault not in shapes), consequence=consequence, remedy=REPACK)
    yield from gather(shapes, consequence="cast on loading", severity="warning")
    misshapen = (
        (ref.name, f"shape {list(ref.shape)}, expected [2]")
        for module in case.packed
        if (ref := module.parts.get("weight_shape")) and ref.shape != (2,)
    )
    yield from gather(misshapen, consequence="no engine can load it", remedy=REPACK)


@rule(
    "T04",
    "weight_packed fits the bits of its group",
    evidence="vllm: assertion, or silent corner copy for experts",
    remedy="ckpt quantize BASE",
)
def packed_shapes(case: Case) -> Iterable[Hit]:
    yield from gather(_packed_faults(case), consequence=SILENT_CORNER, remedy=REPACK)


def _packed_faults(case: Case) -> Iterator[tuple[str, str]]:
    for module, scheme in schemed(case):
        ref = module.parts.get("weight_packed")
        if ref is None or ref.dtype != "I32" or module.known is None or len(module.known) != 2:
            continue
        rows, columns = _rows(module, module.known[0]), module.known[1]
        if ref.shape != (expected := (rows, scheme.packed_columns(columns))):
            found = f"shape {list(ref.shape)}, expected {list(expected)} for {scheme.num_bits} bits of {scheme.group}"
            bits = ref.shape[-1] * 32 / columns if columns and len(ref.shape) == 2 else 0
            hint = f"; packed with {bits:.0f} bits" if ref.shape[:1] == (rows,) and bits in (2, 4, 8) else ""
            yield ref.name, found + hint


@rule(
    "T05",
    "weight_scale fits the group size of its group",
    evidence="vllm#41511; too small scales load silently",
    remedy="ckpt quantize BASE",
)
def scale_shapes(case: Case) -> Iterable[Hit]:
    yield from gather(_scale_faults(case), consequence=SILENT_CORNER, remedy=REPACK)


def _scale_faults(case: Case) -> Iterator[tuple[str, str]]:
    for module, scheme in schemed(case):
        ref, size = module.parts.get("weight_scale"), module.size
        if ref is None or size is None:
            continue
        expected = (_rows(module, size[0]), scheme.scale_columns(size[1]))
        if ref.shape != expected:
            grouping = f"group size {scheme.group_size}" if scheme.group_size else f"strategy {scheme.strategy}"
            yield ref.name, f"shape {list(ref.shape)}, expected {list(expected)} for {grouping} of {scheme.group}"


@rule(
    "T09",
    "zero points are stored if and only if the group is asymmetric",
    evidence="llm-compressor#2255",
    remedy="ckpt quantize BASE",
    versions="vLLM 0.24 reads asymmetric experts (seen running), transformers 5.17 does not (C05)",
)
def zero_points(case: Case) -> Iterable[Hit]:
    yield from gather(_zero_point_faults(case), consequence="KeyError, or values off by the zero point", remedy=REPACK)


def _zero_point_faults(case: Case) -> Iterator[tuple[str, str]]:
    for module, scheme in schemed(case):
        ref, size = module.parts.get("weight_zero_point"), module.size
        if scheme.symmetric and ref is not None:
            yield ref.name, f"stored, and {scheme.group} is symmetric"
        elif not scheme.symmetric and f"{module.name}.weight_zero_point" not in case.named:
            yield module.name, f"no weight_zero_point, and {scheme.group} is asymmetric"
        elif ref is not None and size is not None:
            expected = (-(-size[0] * scheme.num_bits // 32), scheme.scale_columns(size[1]))
            if ref.shape != expected:
                yield ref.name, f"shape {list(ref.shape)}, expected {list(expected)}"


@rule(
    "T10",
    "the vision tower is not packed",
    engines=("sglang",),
    evidence="SGLang builds it without a quantization config; vllm-omni#3714: 4304 columns divide by no group size",
    remedy="ckpt graft SRC --from BASE --tensors 're:.*visual.*'",
)
def vision(case: Case) -> Iterable[Hit]:
    """vLLM 0.24 and transformers 5.17 run it where every shape divides by the groups, which T07 looks at."""
    concerns = labels(case, "sglang")
    faults = ((module.name, "packed") for module in case.packed if concerns and _is_vision(module))
    consequence = "SGLang never reads it packed: the tower runs on uninitialised memory"
    yield from gather(faults, consequence=consequence, engines=concerns)


@rule(
    "T11",
    "the embedding is not packed",
    evidence="vllm#54304, sglang#38143",
    remedy="ckpt graft SRC --from BASE --tensors NAME.weight",
)
def embedding(case: Case) -> Iterable[Hit]:
    faults = ((module.name, "packed") for module in case.packed if _is_embedding(module))
    consequence = "engines look tokens up in plain rows: it cannot load, or is dropped"
    yield from gather(faults, consequence=consequence, remedy="ckpt graft SRC --from BASE --tensors NAME.weight")


def _rows(module: Packed, rows: int) -> int:
    """The rows that a packed module should have; of a head, which L01 looks at, those that it has."""
    packed = module.parts.get("weight_packed")
    own = packed is not None and packed.shape and (module.kind == "head" or module.leaf == "lm_head")
    return packed.shape[0] if packed is not None and own else rows


def schemed(case: Case) -> Iterator[tuple[Packed, Scheme]]:
    """Packed modules that the config has a scheme for; those that it ignores or misses are left to others."""
    astray = {
        one.slot.name
        for rule_id in ("C08", "C13", "C17", "C20")
        for one in case.mismatches.get(rule_id, ())
        if rule_id == "C17" or any(failure.resolution.ignored for failure in one.failures)
    }
    return ((module, module.scheme) for module in case.packed if module.scheme and module.name not in astray)


def _is_vision(module: Packed) -> bool:
    return module.kind == "vision" or (module.kind is None and VISION.match(module.name) is not None)


def _is_embedding(module: Packed) -> bool:
    return module.kind == "embedding" or (module.kind is None and module.leaf == "embed_tokens")
