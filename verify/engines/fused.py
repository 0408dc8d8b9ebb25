"""How vLLM and SGLang look a layer up in the config, fused layers and experts included.

Source: `should_ignore_layer`, `find_matched_target` and `get_moe_method` (SGLang: `get_moe_scheme`) in the engines'
`layers/quantization/compressed_tensors/`. Both share the code's shape; `Manner` holds where they part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from verify.engines.engine import Engine, View
from verify.engines.entries import Entries, config_groups, ignore_entries, target_groups
from verify.engines.resolution import Fault, LoadError, Resolution
from verify.engines.schemes import Scheme, scheme_of
from verify.engines.slots import Slot

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
LINEAR = "Linear"


@dataclass(frozen=True)
class Manner:
    """Where the engines part: `experts_classes` take over what `Linear` is assigned; `suffixes`: an exact ignore entry
    also names a module by the end of its name; `shards_first`: shards before the class; `head_by_class`: class names
    are tried on the head; `must_match`: a layer that nothing covers is an error; `inherits_format`: a group without a
    format has that of the whole config."""

    experts_classes: tuple[str, ...]
    suffixes: bool = False
    shards_first: bool = False
    head_by_class: bool = True
    must_match: bool = False
    inherits_format: bool = False


class Verdict(NamedTuple):
    """What the config says of one layer. `fault` and `found` are set where the engine cannot build it."""

    group: str | None = None
    entry: str | None = None
    ignored: bool = False
    fault: Fault | None = None
    found: str = ""


@dataclass(frozen=True)
class FusedResolver:
    """The look-up of one engine in one scope of one config."""

    engine: Engine
    view: View
    quantization: Mapping[str, Any]
    manner: Manner
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    def resolve(self, slots: tuple[Slot, ...]) -> tuple[dict[str, Resolution], list[LoadError]]:
        """What becomes of each slot that the scope loads, and what cannot be built."""
        resolutions: dict[str, Resolution] = {}
        failed: dict[str, list[str]] = {}
        for slot in slots:
            if self.view.loads(slot.name):
                one = self._resolution(slot)
                resolutions[slot.name] = one
                if not one.exempt and self.verdicts[one.layer].fault:
                    failed.setdefault(one.layer, []).append(slot.name)
        return resolutions, list(self._errors(failed))

    def _resolution(self, slot: Slot) -> Resolution:
        if slot.owner is None and self.view.is_unquantized(slot.name):
            name = self.view.engine_name(slot.name)
            return Resolution(slot.name, self.view.scope, name, "dense", exempt=True)
        layer = self.view.engine_name(slot.owner) if slot.owner else self._layer(slot.name)
        verdict = self.verdicts.get(layer)
        if verdict is None:
            verdict = self.verdicts[layer] = self._verdict(slot, layer)
        if verdict.fault == "shards":
            verdict = self._single(self.view.engine_name(slot.name))
        group, entry, ignored = verdict[:3]
        return Resolution(slot.name, self.view.scope, layer, "packed" if group else "dense", group, entry, ignored)

    def _layer(self, module: str) -> str:
        """The engine's layer that holds the module: itself, or the fused layer it is a shard of."""
        parent, dot, leaf = self.view.engine_name(module).rpartition(".")
        return f"{parent}{dot}{self.view.layer_of.get(leaf, leaf)}"

    def _verdict(self, slot: Slot, layer: str) -> Verdict:
        if slot.owner is not None:
            return self._experts(layer)
        if slot.kind == "head" and not self.manner.head_by_class:
            return self._head(layer)
        return self._look_up(layer, self.engine.class_name(layer))

    def _look_up(self, layer: str, class_name: str) -> Verdict:
        leaf = layer.rpartition(".")[2]
        names = [layer]
        if leaf in self.view.matching and layer not in self._ignore:
            names = [layer.replace(leaf, shard) for shard in self.view.matching[leaf]]
        entries = [self._ignored(name) for name in names]
        if any(entries) and not all(entries):
            found = {bool(entry): name for name, entry in zip(names, entries, strict=True)}
            return Verdict(fault="shards", found=f"{found[True]} is ignored, {found[False]} is not")
        if entries[0]:
            return Verdict(entry=entries[0], ignored=True)
        target = self._target(layer, class_name)
        if target is None:
            return Verdict(fault="no-target" if self.manner.must_match else None)
        written = LINEAR if target in self.manner.experts_classes and target not in self._written else target
        return Verdict(self._groups[target], written)

    def _experts(self, layer: str) -> Verdict:
        """All experts of a layer are built as expert 0's projections say, which must agree."""
        class_name = self.manner.experts_classes[0]
        verdicts = [self._look_up(f"{layer}.0.{projection}", class_name) for projection in PROJECTIONS]
        schemes = [self._scheme(verdict.group) for verdict in verdicts]
        if any(scheme != schemes[0] for scheme in schemes):
            states = ", ".join(f"{p} {v.group or 'dense'}" for p, v in zip(PROJECTIONS, verdicts, strict=True))
            return verdicts[0]._replace(fault="experts", found=f"expert 0 has {states}")
        return next((verdict for verdict in verdicts if verdict.fault), verdicts[0])

    def _head(self, layer: str) -> Verdict:
        """SGLang's `get_lm_head_scheme`: by name only, and dense where no target names it."""
        entry = self._ignored(layer)
        if entry:
            return Verdict(entry=entry, ignored=True)
        target = self._targets.first_by_suffix(layer)
        return Verdict(self._groups[target], target) if target else Verdict()

    def _single(self, name: str) -> Verdict:
        """What the config says of one shard alone, where the layer as a whole cannot be built."""
        entry = self._ignored(name)
        if entry:
            return Verdict(entry=entry, ignored=True)
        target = self._target(name, self.engine.class_name(name))
        return Verdict(self._groups[target], target) if target else Verdict()

    def _ignored(self, name: str) -> str | None:
        return self._ignore.first_by_suffix(name) if self.manner.suffixes else self._ignore.first(name)

    def _target(self, layer: str, class_name: str) -> str | None:
        named = self._targets.first(layer)
        if named is not None:
            return named
        if self.manner.shards_first:
            return self._shard_target(layer) or self._class_target(class_name)
        return self._class_target(class_name) or self._shard_target(layer)

    def _class_target(self, class_name: str) -> str | None:
        """The first target that is contained in the class name, whatever its case, or matches it as a regex."""
        lowered = class_name.lower()
        for target in self._groups:
            pattern = target.startswith("re:")
            if Entries([target]).first(class_name) if pattern else target.lower() in lowered:
                return target
        return None

    def _shard_target(self, layer: str) -> str | None:
        """If each shard has a target, that of the first."""
        key = next((key for key in self.view.matching if layer.endswith(key)), None)
        if key is None:
            return None
        found = [self._targets.first(layer.replace(key, shard)) for shard in self.view.matching[key]]
        return found[0] if all(found) else None

    def _scheme(self, group: str | None) -> Scheme | None:
        """What two groups must share to be the same scheme; None for dense."""
        data = config_groups(self.quantization).get(group or "")
        if data is None:
            return None
        inherited = self.quantization.get("format") if self.manner.inherits_format else None
        return scheme_of(data, inherited)

    def _errors(self, failed: Mapping[str, list[str]]) -> Iterator[LoadError]:
        for layer, modules in failed.items():
            verdict = self.verdicts[layer]
            if verdict.fault is not None:
                yield LoadError(verdict.fault, self.view.scope, layer, verdict.found, tuple(modules))

    @cached_property
    def _ignore(self) -> Entries:
        entries = ignore_entries(self.quantization)
        return Entries(entries, {entry: self.view.engine_entry(entry) for entry in entries})

    @cached_property
    def _written(self) -> dict[str, str]:
        return target_groups(self.quantization)

    @cached_property
    def _groups(self) -> dict[str, str]:
        """Target -> group, with the classes of experts added where `Linear` is a target."""
        groups = dict(self._written)
        if LINEAR in groups and self.manner.experts_classes[0] not in groups:
            groups |= dict.fromkeys(self.manner.experts_classes, groups[LINEAR])
        return groups

    @cached_property
    def _targets(self) -> Entries:
        return Entries(self._groups, {target: self.view.engine_entry(target) for target in self._groups})
