"""transformers: compressed-tensors' own matching over the modules of the model, and one scheme for all experts.

Source: `apply_quantization_config` and `match_targets` in compressed-tensors, `get_experts_scheme` and
`update_weight_conversions` in transformers. The experts are parameters there, not modules: whatever is stored per
expert is unpacked while loading, and what is stored fused is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verify.engines.engine import Engine, View
from verify.engines.entries import Entries, config_groups, group_targets, ignore_entries, target_groups
from verify.engines.resolution import LoadError, Resolution
from verify.engines.slots import Slot

LINEAR_CLASSES = ("Linear", "Module")
EMBEDDING_CLASSES = ("Embedding", "Module")


def resolve_scope(
    engine: Engine, view: View, quantization: Mapping[str, Any], slots: tuple[Slot, ...]
) -> tuple[dict[str, Resolution], list[LoadError]]:
    """What transformers builds. It has no draft model, and no config makes it refuse a layer."""
    lists = _Lists(quantization)
    loaded = (slot for slot in slots if view.loads(slot.name))
    return {slot.name: _resolution(slot, view, lists) for slot in loaded}, []


def experts_group(quantization: Mapping[str, Any]) -> str | None:
    """The group by which transformers unpacks all experts: the first with a regex that says `experts`, else the first
    with any other target than a regex, else the first."""
    groups = {name: group_targets(group) for name, group in config_groups(quantization).items()}
    for name, targets in groups.items():
        if any(target.startswith("re:") and "experts" in target for target in targets):
            return name
    for name, targets in groups.items():
        if any(not target.startswith("re:") for target in targets):
            return name
    return next(iter(groups), None)


class _Lists:
    """The ignore list and the targets, in compressed-tensors' order: exact names, then regexes, each alphabetically."""

    def __init__(self, quantization: Mapping[str, Any]) -> None:
        self.ignore = Entries(ignore_entries(quantization))
        self.groups = target_groups(quantization)
        self.targets = Entries(sorted(self.groups, key=lambda target: ("re:" in target, target)))
        self.experts = experts_group(quantization)

    def ignored(self, name: str, classes: tuple[str, ...]) -> str | None:
        return self.ignore.first(name) or next((one for one in classes if one in self.ignore), None)

    def target(self, name: str, classes: tuple[str, ...]) -> str | None:
        return self.targets.first(name) or next((one for one in classes if one in self.groups), None)


def _resolution(slot: Slot, view: View, lists: _Lists) -> Resolution:
    if view.is_unquantized(slot.name):
        return Resolution(slot.name, view.scope, slot.name, "dense", exempt=True)
    if slot.owner is not None:
        return _experts(slot, slot.owner, view, lists)
    classes = EMBEDDING_CLASSES if slot.kind == "embedding" else LINEAR_CLASSES
    entry = lists.ignored(slot.name, classes)
    if entry is not None:
        return Resolution(slot.name, view.scope, slot.name, "dense", entry=entry, ignored=True)
    target = lists.target(slot.name, classes)
    if target is None:
        return Resolution(slot.name, view.scope, slot.name, "dense")
    return Resolution(slot.name, view.scope, slot.name, "packed", lists.groups[target], target)


def _experts(slot: Slot, owner: str, view: View, lists: _Lists) -> Resolution:
    """Experts stored one by one are expected packed, those of a fused parameter dense; no list is consulted."""
    if slot.name.rpartition(".")[0] == owner:
        return Resolution(slot.name, view.scope, owner, "dense", exempt=True)
    return Resolution(slot.name, view.scope, owner, "packed", lists.experts)
