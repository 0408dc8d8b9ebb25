"""The routed experts: all there, stored in one way, under names that engines know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from verify.case import Case
from verify.claims import FUSED_PACKED, is_draft
from verify.descent import EXPERT, UNNAMED_SPLITS
from verify.gathering import folded, gather
from verify.registry import Hit, rule

GARBAGE = "vLLM and SGLang compute with an uninitialised expert, transformers raises"


@rule(
    "I04",
    "experts are numbered without a gap and have all projections",
    evidence="llm-compressor#2060",
    remedy="ckpt graft SRC --from BASE --tensors NAME, or export again",
)
def complete_experts(case: Case) -> Iterable[Hit]:
    inventory = case.inventory
    missing = inventory.missing.get("I04", ()) if inventory else tuple(_gaps(case))
    extra = inventory.extra.get("I04", ()) if inventory else ()
    remedy = "ckpt graft SRC --from BASE --tensors NAME, or export again"
    yield from gather(((name, "missing") for name in missing), consequence=GARBAGE, remedy=remedy)
    found = "more experts or projections than the model has"
    yield from gather(((name, found) for name in extra), consequence="strict loaders refuse the names")


@rule(
    "I05",
    "no layer stores its experts both fused and one by one",
    evidence="both are loaded, the last wins",
    remedy="Remove the fused parameters",
)
def experts_twice(case: Case) -> Iterable[Hit]:
    owners = _owners(case)
    both = sorted(owners["fused"] & (owners["dense"] | owners["packed"]))
    faults = ((owner, "fused parameters beside those of single experts") for owner in both)
    yield from gather(faults, consequence="both are loaded and the last one wins", remedy="Remove the fused parameters")


@rule(
    "I06",
    "not some layers fused and dense, others packed one by one",
    engines=("sglang", "vllm"),
    evidence="sglang: once a fused name is seen, only fused names are mapped; vLLM 0.24's loader, seen on a CPU",
    remedy="Store the dense experts one by one, too",
)
def mixed_layouts(case: Case) -> Iterable[Hit]:
    owners = {layout: {o for o in found if not is_draft(case, o)} for layout, found in _owners(case).items()}
    fused = owners["fused"] - owners["packed"]
    if fused and owners["packed"]:
        found = f"fused and dense, while {folded(sorted(owners['packed']))} is packed one by one"
        consequence = "the packed experts are skipped without a word"
        place = folded(sorted(fused))
        yield Hit(place, found, consequence, "Store the dense experts one by one, too", count=len(fused))


@rule(
    "I07",
    "experts are not packed under fused names",
    evidence="transformers#47407",
    remedy="Export each expert's projections as modules",
    versions="transformers 5.10 initialises them at random, 5.13.1 mends its own export",
)
def fused_packed(case: Case) -> Iterable[Hit]:
    faults = ((name, "packed experts under a fused name") for name in case.named if FUSED_PACKED.fullmatch(name))
    consequence = "no engine knows the name: random experts in transformers, no such parameter in vLLM"
    yield from gather(faults, consequence=consequence, remedy="Export each expert's projections as modules")


def _owners(case: Case) -> dict[str, set[str]]:
    """The modules that hold experts, by how these are stored: `fused`, or one by one `dense` or `packed`."""
    owners: dict[str, set[str]] = {"fused": set(), "dense": set(), "packed": set()}
    for name, module in case.modules.items():
        match = EXPERT.fullmatch(name)
        owner, _, leaf = name.rpartition(".")
        if match:
            owners["packed" if module.packed else "dense"].add(match["owner"])
        elif owner.endswith(".experts") and leaf in UNNAMED_SPLITS and not module.packed:
            owners["fused"].add(owner)
    return owners


def _gaps(case: Case) -> Iterator[str]:
    """Where nothing tells what the model has: experts absent although a later or a sister one is there."""
    found: dict[str, dict[str, set[int]]] = {}
    for name in case.named_modules:
        if match := EXPERT.fullmatch(name):
            found.setdefault(match["owner"], {}).setdefault(match["part"], set()).add(int(match["index"]))
    count = 1 + max((max(indices) for parts in found.values() for indices in parts.values()), default=-1)
    parts_known = {part for parts in found.values() for part in parts}
    for owner, parts in found.items():
        for part in sorted(parts_known):
            for index in sorted(set(range(count)) - parts.get(part, set())):
                yield f"{owner}.{index}.{part}"
