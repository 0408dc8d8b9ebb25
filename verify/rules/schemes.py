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


Fault = tuple[str, str, tuple[str, ...]]


def _faults(case: Case, group: str, weights: Mapping[str, Any]) -> Iterator[Fault]:
    vllm = labels(case, "vllm")
    kind, strategy, size = weights.get("type", "int"), weights.get("strategy"), weights.get("group_size")
    if kind != "int":
        yield f"type {kind!r} for packed integers", "no compressed-tensors scheme is found", vllm
    yield from _bits(case, group, weights.get("num_bits", 8))
    if strategy not in (None, "group", "channel"):
        yield f"strategy {strategy!r}", "pack-quantized needs group or channel", vllm
    if size is not None and size not in KERNEL_GROUPS:
        yield (
            f"group_size {size}",
            "no kernel: 'Failed to find a kernel that can implement the WNA16 linear layer'",
            vllm,
        )
    if weights.get("dynamic"):
        yield "dynamic weights", "no compressed-tensors scheme is found", vllm
    if weights.get("actorder") in ("group", "dynamic"):
        late = tuple(engine.label for engine in concerned(case, "vllm") if engine.has("no_group_actorder"))
        yield f"actorder {weights['actorder']!r}", "ValueError: no longer supported", late
    if weights.get("symmetric") is False and _has_experts(case, group):
        # Seen with transformers 5.17: its per-expert unpacking knows no zero point.
        consequence = "RuntimeError in the weight conversion: experts are unpacked without zero points"
        yield "asymmetric experts", consequence, labels(case, "transformers")


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
    experts = {slot.name for slot in case.slots if slot.kind == "expert" and slot.packed}
    return any(one.group == group and one.module in experts for resolved in case.resolved for one in resolved)
