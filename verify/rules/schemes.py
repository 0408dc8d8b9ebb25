"""The schemes of the config groups: what the engines' kernels can read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from verify.case import Case
from verify.engines import concerned, config_groups
from verify.registry import Hit, rule
from verify.rules.config import labels, packed_groups

KERNEL_BITS = (4, 8)
KERNEL_GROUPS = (-1, 32, 64, 128)
"""Marlin's group sizes: vLLM MARLIN_SUPPORTED_GROUP_SIZES; -1 is one scale per channel."""
TRITON_GROUP = 256
"""What TritonW4A16LinearKernel takes besides."""


GROUP_FIELDS = frozenset({"targets", "weights", "input_activations", "output_activations", "format"})
ARGUMENT_FIELDS = frozenset(
    {
        "num_bits",
        "type",
        "symmetric",
        "group_size",
        "strategy",
        "block_structure",
        "dynamic",
        "actorder",
        "observer",
        "observer_kwargs",
    }
)
"""The fields of QuantizationScheme and QuantizationArgs in compressed-tensors 0.11 to 0.20, `extra="forbid"`."""
DTYPE_FIELDS = frozenset({"scale_dtype", "zp_dtype"})
"""Fields of QuantizationArgs since compressed-tensors 0.13, which write them even where they are null."""


@rule(
    "C04",
    "groups have no field that the engines' compressed-tensors does not know",
    cost="config",
    evidence="llm-compressor#2057, llm-compressor#2234: pydantic Extra inputs are not permitted",
    remedy="Remove the field from config.json",
    versions="vLLM 0.14 and later require compressed-tensors 0.13, the first to know scale_dtype and zp_dtype",
)
def fields(case: Case) -> Iterable[Hit]:
    """vLLM and SGLang read the arguments of weights and activations only, transformers the whole group."""
    every, early = labels(case, "vllm", "sglang", "transformers"), _before(case, "dtype_fields")
    consequence = "ValidationError: Extra inputs are not permitted"
    for name, group in config_groups(case.quantization or {}).items():
        place = f"quantization_config.config_groups.{name}"
        if (unknown := sorted(set(group) - GROUP_FIELDS)) and (concerns := labels(case, "transformers")):
            yield Hit(place, f"unknown fields {', '.join(unknown)}", consequence, engines=concerns)
        for part in ("weights", "input_activations", "output_activations"):
            stated = set(group[part]) if isinstance(group.get(part), dict) else set()
            if (unknown := sorted(stated - ARGUMENT_FIELDS - DTYPE_FIELDS)) and every:
                yield Hit(f"{place}.{part}", f"unknown fields {', '.join(unknown)}", consequence, engines=every)
            if (late := sorted(stated & DTYPE_FIELDS)) and early:
                found = f"{', '.join(late)}, which compressed-tensors knows since 0.13"
                yield Hit(f"{place}.{part}", found, consequence, engines=early)


def _before(case: Case, change: str) -> tuple[str, ...]:
    """The releases of vLLM in question that are older than a change."""
    return tuple(engine.label for engine in concerned(case, "vllm") if not engine.has(change))


@rule(
    "C05",
    "schemes are those that kernels exist for",
    cost="config",
    evidence="vLLM compressed_tensors_wNa16.py, get_moe_method; transformers DecompressExperts",
    remedy="ckpt quantize BASE --bits 4 --group-size 32",
    versions="vLLM: bits other than 4 and 8 since 0.26 (linear layers); actorder group and dynamic refused since 0.30",
)
def schemes(case: Case) -> Iterable[Hit]:
    quantization = case.quantization or {}
    stated, used = quantization.get("config_groups"), packed_groups(case)
    for name, group in config_groups(quantization).items():
        place, weights = f"quantization_config.config_groups.{name}", group.get("weights")
        if isinstance(stated, dict) and isinstance(stated[name], list):
            if engines := labels(case, "vllm", "sglang"):
                yield Hit(place, "a preset without its scheme", "TypeError", "Spell the scheme out", engines=engines)
        elif name in used and isinstance(weights, dict):
            for found, consequence, engines in _faults(case, name, weights):
                if engines:
                    yield Hit(place, found, consequence, engines=engines)
            yield from _sizes(case, name, weights.get("group_size"))


Fault = tuple[str, str, tuple[str, ...]]


def _faults(case: Case, group: str, weights: Mapping[str, Any]) -> Iterator[Fault]:
    vllm = labels(case, "vllm")
    kind, strategy = weights.get("type", "int"), weights.get("strategy")
    if kind != "int":
        yield f"type {kind!r} for packed integers", "no compressed-tensors scheme is found", vllm
    yield from _bits(case, group, weights.get("num_bits", 8))
    if strategy not in (None, "group", "channel"):
        yield f"strategy {strategy!r}", "pack-quantized needs group or channel", vllm
    if weights.get("dynamic"):
        yield "dynamic weights", "no compressed-tensors scheme is found", vllm
    if weights.get("actorder") in ("group", "dynamic"):
        late = tuple(engine.label for engine in concerned(case, "vllm") if engine.has("no_group_actorder"))
        yield f"actorder {weights['actorder']!r}", "ValueError: no longer supported", late
    if weights.get("symmetric") is False and _has_experts(case, group):
        # Seen with transformers 5.17: its per-expert unpacking knows no zero point.
        consequence = "RuntimeError in the weight conversion: experts are unpacked without zero points"
        yield "asymmetric experts", consequence, labels(case, "transformers")


def _sizes(case: Case, group: str, size: Any) -> Iterator[Hit]:
    """Sizes outside Marlin's: linear layers find no kernel but Triton's for 256, experts fall back to a slower one."""
    vllm = labels(case, "vllm")
    if type(size) is not int or size in KERNEL_GROUPS or not vllm:
        return
    place, found = f"quantization_config.config_groups.{group}", f"group_size {size}"
    if _has_linear(case, group) and size != TRITON_GROUP:
        consequence = "ValueError: Failed to find a kernel that can implement the WNA16 linear layer"
        yield Hit(place, found, consequence, engines=vllm)
    else:
        yield Hit(place, found, "vLLM 0.24 runs it, without its Marlin kernel", severity="warning", engines=vllm)


def _bits(case: Case, group: str, bits: Any) -> Iterator[Fault]:
    if bits in KERNEL_BITS:
        return
    found = f"num_bits {bits}"
    if _has_experts(case, group):
        yield found, "experts are read in 4 and 8 bits only: ValueError", labels(case, "vllm", "sglang")
        return
    yield found, "ValueError: Unsupported num_bits", _before(case, "any_bits")


def _has_experts(case: Case, group: str) -> bool:
    return _holds(case, group, experts=True)


def _has_linear(case: Case, group: str) -> bool:
    return _holds(case, group, experts=False)


def _holds(case: Case, group: str, *, experts: bool) -> bool:
    """Does some engine read a packed module of the kind by `group`?"""
    names = {slot.name for slot in case.slots if slot.packed and (slot.kind == "expert") == experts}
    return any(one.group == group and one.module in names for resolved in case.resolved for one in resolved)
