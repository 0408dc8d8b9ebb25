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


@rule(
    "C05",
    "schemes are those that kernels exist for",
    cost="config",
    evidence="vLLM compressed_tensors_wNa16.py, get_moe_method; transformers DecompressExperts",
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
    if size is None or size in KERNEL_GROUPS or not vllm:
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
    early = tuple(engine.label for engine in concerned(case, "vllm") if not engine.has("any_bits"))
    yield found, "ValueError: Unsupported num_bits", early


def _has_experts(case: Case, group: str) -> bool:
    return _holds(case, group, experts=True)


def _has_linear(case: Case, group: str) -> bool:
    return _holds(case, group, experts=False)


def _holds(case: Case, group: str, *, experts: bool) -> bool:
    """Does some engine read a packed module of the kind by `group`?"""
    names = {slot.name for slot in case.slots if slot.packed and (slot.kind == "expert") == experts}
    return any(one.group == group and one.module in names for resolved in case.resolved for one in resolved)
