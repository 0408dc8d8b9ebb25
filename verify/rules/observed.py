"""What a running engine was seen to do wrong with a checkpoint that loads and resolves: vLLM 0.24.0 on one H200.

Faults of the kernels for experts. What shows in names, shapes or the config alone is the matter of the other rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from verify.case import Case
from verify.descent import EXPERT
from verify.gathering import folded
from verify.groups import Scheme
from verify.registry import Hit, rule
from verify.rules.config import labels

CHANNEL = -1
SMALLEST_MARLIN = 64
"""vLLM check_moe_marlin_supports_layer: the intermediate size per rank must divide by 64 and by the group size."""

RANKS = (1, 2, 4, 8)


class Experts(NamedTuple):
    """The packed experts of one layer, as expert 0's down_proj [hidden, intermediate] shows them."""

    owner: str
    hidden: int
    intermediate: int
    scheme: Scheme


@rule(
    "O01",
    "INT8 experts have one scale per channel, written as group_size -1",
    engines=("vllm",),
    evidence="vLLM 0.24.0 compressed_tensors_moe_wna16_marlin.py: assert self.group_size == -1; seen running",
    remedy="Set group_size -1 if the scales are [N, 1], else quantize the experts again",
    versions="seen with vLLM 0.24.0",
)
def int8_experts(case: Case) -> Iterable[Hit]:
    concerns = labels(case, "vllm")
    owners: dict[str, list[str]] = {}
    for one in _experts(case):
        if one.scheme.num_bits == 8 and (found := _not_channel(case, one.scheme)):
            owners.setdefault(found, []).append(one.owner)
    for found, names in owners.items() if concerns else ():
        remedy = "Set strategy 'channel' and group_size -1 if the scales are [N, 1], else quantize the experts again"
        consequence = "a bare AssertionError while building the model"
        yield Hit(folded(names), found, consequence, remedy, engines=concerns, count=len(names))


def _not_channel(case: Case, scheme: Scheme) -> str | None:
    groups = (case.quantization or {}).get("config_groups")
    group = groups.get(scheme.group) if isinstance(groups, dict) else None
    weights = group.get("weights") if isinstance(group, dict) else None
    size = weights.get("group_size") if isinstance(weights, dict) else None
    return None if size == CHANNEL else f"8 bits with group_size {'null' if size is None else size}"


@rule(
    "O02",
    "the experts' intermediate size per rank exceeds the group size",
    engines=("vllm",),
    evidence="vllm#50196: gate and up scales are permuted as if they had one group; seen running",
    remedy="Serve on fewer ranks or with expert parallelism, or quantize in smaller groups",
    versions="seen with vLLM 0.24.0; vllm#50196 proposes a fix",
)
def marlin_scales(case: Case) -> Iterable[Hit]:
    """By `--tp`, else on one rank; which other numbers of ranks would be wrong is a fact."""
    concerns, ranks = labels(case, "vllm"), case.tp or 1
    experts = list(_experts(case)) if concerns else []
    wrong = [one.owner for one in experts if _is_permuted(one, ranks)]
    if wrong:
        first = next(one for one in experts if _is_permuted(one, ranks))
        found = (
            f"intermediate size {first.intermediate} over {ranks} rank(s) is the group size {first.scheme.group_size}"
        )
        consequence = "loads and answers, with the gate and up scales permuted (vLLM 0.24.0): silently wrong"
        remedy = "Serve on fewer ranks or with expert parallelism, or quantize in smaller groups"
        yield Hit(folded(wrong), found, consequence, remedy, engines=concerns, count=len(wrong))
    elif case.tp is None and (bad := [n for n in RANKS if any(_is_permuted(one, n) for one in experts)]):
        ranks_text = ", ".join(map(str, bad))
        case.notes.fact(f"vLLM 0.24.0 would be silently wrong at --tensor-parallel-size {ranks_text} (vllm#50196)")


def _is_permuted(experts: Experts, ranks: int) -> bool:
    size = experts.scheme.group_size
    if size is None or size < SMALLEST_MARLIN or experts.intermediate % ranks:
        return False
    return experts.intermediate // ranks == size < experts.hidden


def _experts(case: Case) -> Iterator[Experts]:
    for module in case.packed:
        match = EXPERT.fullmatch(module.name)
        if match and match["index"] == "0" and match["part"] == "down_proj" and module.scheme and module.size:
            yield Experts(match["owner"], *module.size, module.scheme)
