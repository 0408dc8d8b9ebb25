"""Where what is stored and what an engine builds part, and which rule names the cause best.

One entry of the config can mislead three engines about ten thousand modules. A mismatch is one module with all the
engines it fails in; a rule gathers those of equal cause into one hit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from checkpoint.patterns import PREFIX
from verify.claims import is_draft
from verify.engines import Engine, Resolution, Scope, Slot, ignore_entries, target_groups
from verify.engines.entries import Entries
from verify.gathering import folded
from verify.registry import Hit

if TYPE_CHECKING:
    from verify.case import Case

SCOPES: Mapping[Scope, str] = {"main": "", "draft": " (draft)"}


class Failure(NamedTuple):
    """One engine, and what it builds instead."""

    engine: Engine
    resolution: Resolution

    @property
    def by_guess(self) -> bool:
        """Whether no entry was consulted: transformers unpacks all experts that are stored one by one."""
        return self.resolution.built == "packed" and self.resolution.entry is None


class Mismatch(NamedTuple):
    """A module that some engines build otherwise than it is stored.

    `blamed` is the config entry that covers the module's name in the checkpoint, but not its name in the engine.
    """

    slot: Slot
    failures: tuple[Failure, ...]
    blamed: str | None

    @property
    def stored(self) -> str:
        return "packed" if self.slot.packed else "dense"

    @property
    def entries(self) -> tuple[str, ...]:
        """The entries by which the engines decided."""
        return tuple(dict.fromkeys(one.resolution.entry for one in self.failures if one.resolution.entry))


Mismatches = Mapping[str, tuple[Mismatch, ...]]
"""By the id of the rule that reports them; those under "" are reported by rules that look at the module itself."""


def find_mismatches(case: Case) -> Mismatches:
    """All mismatches of a case by rule."""
    if case.quantization is None:
        return {}
    blame = _Blame(case)
    told = _told(case)
    mixed = _mixed_experts(slot for slot in case.slots if slot.name not in told)
    broken = unbuildable(case)
    claims: dict[str, list[Mismatch]] = defaultdict(list)
    for slot, failures in _failures(case):
        if slot.name in told:
            continue
        mismatch = Mismatch(slot, failures, blame.entry(slot, failures))
        claims[_rule(case, mismatch, mixed, broken)].append(mismatch)
    return {rule: tuple(found) for rule, found in claims.items()}


def _told(case: Case) -> set[str]:
    """Modules stored dense and packed at once, and experts stored fused and one by one: T02 and I05 report them."""
    both = {n for n, one in case.modules.items() if "weight" in one.tensors and "weight_packed" in one.tensors}
    fused = [slot for slot in case.slots if _is_fused(slot)]
    single = {slot.owner for slot in case.slots if slot.owner and not _is_fused(slot)} if fused else set()
    return both | {slot.name for slot in fused if slot.owner in single}


def _is_fused(slot: Slot) -> bool:
    return slot.owner is not None and slot.name.rpartition(".")[0] == slot.owner


def _failures(case: Case) -> Iterator[tuple[Slot, tuple[Failure, ...]]]:
    found: dict[str, list[Failure]] = defaultdict(list)
    packed = {slot.name: slot.packed for slot in case.slots}
    for resolved in case.resolved:
        for resolution in resolved:
            if (resolution.built == "packed") != packed[resolution.module]:
                found[resolution.module].append(Failure(resolved.engine, resolution))
    for slot in case.slots:
        if slot.name in found:
            yield slot, tuple(found[slot.name])


def overreaches(case: Case, entry: str, module: str) -> bool:
    """Does an ignore entry cover `module` only in passing?

    Either it is a regex that dense modules of the main model need, or an exact name of something else, which SGLang
    looks for at the end of names, too. The draft head is ignored as a whole by intent, and the head by name.
    """
    if not entry.startswith(PREFIX):
        return module.endswith(f".{entry}")
    entries = Entries([entry])
    return any(not slot.packed and not is_draft(case, slot.name) and entries.first(slot.name) for slot in case.slots)


def unbuildable(case: Case) -> set[str]:
    """The modules of layers that an engine cannot build at all; C09 and C10 report them."""
    torn = {shard for layer in torn_layers(case) for shard in layer.shards}
    faulty = (error for one in case.resolved for error in one.errors if error.fault != "no-target")
    return torn.union(*(error.modules for error in faulty))


class TornLayer(NamedTuple):
    """A fused layer of which some shards are stored packed and some dense."""

    engine: Engine
    layer: str
    shards: tuple[str, ...]
    packed: tuple[str, ...]


def torn_layers(case: Case) -> list[TornLayer]:
    """The fused layers, by engine, whose shards are not stored alike."""
    told = _told(case)
    packed = {slot.name: slot.packed for slot in case.slots if slot.owner is None and slot.name not in told}
    torn = []
    for resolved in case.resolved:
        shards: dict[str, list[str]] = defaultdict(list)
        for one in resolved:
            if one.module in packed and not one.exempt:
                shards[one.layer].append(one.module)
        for layer, names in shards.items():
            inside = tuple(name for name in names if packed[name])
            if inside and len(inside) < len(names):
                torn.append(TornLayer(resolved.engine, layer, tuple(names), inside))
    return torn


def _mixed_experts(slots: Iterable[Slot]) -> set[str]:
    """The owners of experts of which some are packed and some are not."""
    states: dict[str, set[bool]] = defaultdict(set)
    for slot in slots:
        if slot.owner is not None:
            states[slot.owner].add(slot.packed)
    return {owner for owner, packed in states.items() if len(packed) > 1}


class _Blame:
    """The entries of the config as they cover names in the checkpoint."""

    def __init__(self, case: Case) -> None:
        quantization = case.quantization or {}
        self._ignore = Entries(ignore_entries(quantization))
        self._names = target_groups(quantization)
        self._targets = Entries(self._names)

    def entry(self, slot: Slot, failures: tuple[Failure, ...]) -> str | None:
        """The entry that was meant for `slot` and does not reach it."""
        if any(one.resolution.exempt for one in failures) or all(one.by_guess for one in failures):
            return None
        if not slot.packed:
            return self._first(self._ignore, slot)
        if any(one.resolution.ignored for one in failures):
            return None
        return self._first(self._targets, slot) or self._aimed_at(slot)

    def _aimed_at(self, slot: Slot) -> str | None:
        """A target with the head's name in it, which reaches it in one scope at most."""
        leaf = slot.name.rpartition(".")[2]
        return next((target for target in self._names if leaf in target), None) if slot.kind == "head" else None

    def _first(self, entries: Entries, slot: Slot) -> str | None:
        """Fused experts are meant by an entry for the first of them."""
        names = [slot.name]
        if _is_fused(slot):
            names.append(f"{slot.owner}.0.gate_proj")
        return next((found for name in names if (found := entries.first(name))), None)


def _rule(case: Case, mismatch: Mismatch, mixed: set[str], broken: set[str]) -> str:
    """The rule that reports a mismatch."""
    slot = mismatch.slot
    if slot.name in broken:
        return ""
    if slot.owner in mixed:
        return "C10"
    if slot.kind == "router":
        return "C15"
    if slot.kind == "head":
        return _head_rule(mismatch)
    if slot.packed and (slot.kind in ("vision", "embedding") or mismatch.failures[0].resolution.exempt):
        return ""
    if mismatch.blamed and mismatch.blamed.startswith(PREFIX):
        return "C11"
    if slot.packed:
        return "C13" if _in_passing(case, mismatch) else "C08"
    if any(one.resolution.scope == "draft" for one in mismatch.failures):
        return "M04" if mismatch.blamed else "M03"
    return "C16" if slot.kind == "vision" else "C07"


def _in_passing(case: Case, mismatch: Mismatch) -> bool:
    ignored = [one.resolution for one in mismatch.failures if one.resolution.ignored]
    if not ignored or any(one.scope == "draft" for one in ignored):
        return False
    return all(one.entry is not None and overreaches(case, one.entry, mismatch.slot.name) for one in ignored)


def _head_rule(mismatch: Mismatch) -> str:
    resolutions = [one.resolution for one in mismatch.failures]
    if not mismatch.slot.packed:
        return "C20"
    if any(one.ignored for one in resolutions):
        return "C20"
    if any(one.exempt for one in resolutions):
        return "L02"
    return "C17" if mismatch.blamed else "C08"


Wording = Callable[[Mismatch], str]
Cause = Callable[[Mismatch], object]


def mismatch_hits(case: Case, rule: str, found: Wording, remedy: Wording, cause: Cause | None = None) -> Iterator[Hit]:
    """One hit for the mismatches of `rule` with the same cause, by default those that read alike."""
    alike: dict[object, list[Mismatch]] = defaultdict(list)
    for one in case.mismatches.get(rule, ()):
        alike[(cause or found)(one)].append(one)
    for together in alike.values():
        names = [one.slot.name for one in together]
        read = readings(case, names)
        failures = [failure for one in together for failure in one.failures]
        yield Hit(
            folded(names),
            f"{found(together[0])}; built {read}" if read else found(together[0]),
            _consequence(together),
            remedy(together[0]),
            engines=tuple(dict.fromkeys(failure.engine.label for failure in failures)),
            count=len(together),
        )


def readings(case: Case, modules: Iterable[str]) -> str:
    """What each engine builds of the modules, where engines differ: `built packed in vLLM, dense in transformers`."""
    built: dict[str, set[str]] = defaultdict(set)
    for resolved in case.resolved:
        for module in modules:
            for scope in resolved.scopes(module):
                one = (resolved.main if scope == "main" else resolved.draft)[module]
                built[f"{resolved.engine.title}{SCOPES[scope]}"].add(one.built)
    ways: dict[str, list[str]] = defaultdict(list)
    for engine, states in built.items():
        ways["partly packed" if len(states) > 1 else states.pop()].append(engine)
    told = (f"{how} in {_listed(ways[how])}" for how in sorted(ways, reverse=True))
    return ", ".join(told) if len(ways) > 1 else ""


def _listed(engines: list[str]) -> str:
    """`vLLM, vLLM (draft) and SGLang`."""
    return " and ".join(filter(None, (", ".join(engines[:-1]), engines[-1])))


def _consequence(together: Iterable[Mismatch]) -> str:
    """What happens in each engine: `vLLM (draft): KeyError ...; transformers: ...`."""
    texts: dict[str, None] = {}
    for one in together:
        for engine, resolution in one.failures:
            text = engine.outcome(one.stored, one.slot.kind, resolution.scope)
            texts[f"{engine.title}{SCOPES[resolution.scope]}: {text}"] = None
    return "; ".join(texts)
