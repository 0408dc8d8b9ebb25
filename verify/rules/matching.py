"""What each engine makes of the config, module by module, against what is stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator

from checkpoint.patterns import PREFIX
from verify.case import Case
from verify.claims import is_draft
from verify.engines import Engine, Resolution, config_groups, ignore_entries
from verify.engines.entries import Entries
from verify.engines.fused import PROJECTIONS
from verify.gathering import folded, gather
from verify.mismatches import Mismatch, mismatch_hits, overreaches, torn_layers
from verify.registry import Hit, rule
from verify.rules.config import DERIVE, repeated_targets

SCHEME_KEYS = ("type", "num_bits", "strategy", "group_size", "symmetric")


@rule(
    "C06",
    "every engine reads a packed module by the scheme it is stored in",
    evidence="engines order targets differently",
    remedy="Let the targets of the groups not overlap",
    versions="vLLM looks a layer's shards up before its class since 0.27",
)
def same_scheme(case: Case) -> Iterable[Hit]:
    """The engine's choice against that of the format's own order, by which the shapes are judged elsewhere."""
    schemes = {name: _scheme(group) for name, group in config_groups(case.quantization or {}).items()}
    failing = {one.slot.name for found in case.mismatches.values() for one in found}
    packed = {slot.name for slot in case.slots if slot.packed} - failing
    expected: dict[str, str | None] = {name: case.groups.group(name) for name in packed}
    repeated = repeated_targets(case)
    titles = {resolved.engine.label: resolved.engine.title for resolved in case.resolved}
    taken: dict[str, dict[str, str]] = defaultdict(dict)
    for resolved in case.resolved:
        for one in resolved:
            group = expected.get(one.module)
            if not group or not one.group or one.entry in repeated or _is_unpacked_by_guess(resolved.engine, one):
                continue
            if schemes[one.group] != schemes[group]:
                taken[one.module][resolved.engine.label] = one.group
    alike: dict[tuple[str | None, tuple[tuple[str, str], ...]], list[str]] = defaultdict(list)
    for module, groups in taken.items():
        alike[expected[module], tuple(groups.items())].append(module)
    for (group, read), names in alike.items():
        by = {other: [titles[label] for label, one in read if one == other] for _, other in read}
        readings = ", ".join(f"by {other} in {' and '.join(engines)}" for other, engines in by.items())
        found = f"packed by {group} in compressed-tensors' order, read {readings}"
        concerns = tuple(label for label, _ in read)
        yield Hit(folded(names), found, "a wrong shape or wrong numbers", engines=concerns, count=len(names))


def _is_unpacked_by_guess(engine: Engine, one: Resolution) -> bool:
    """transformers' one scheme for all experts is the matter of C17."""
    return engine.name == "transformers" and one.layer != one.module


def _scheme(group: object) -> object:
    weights = group.get("weights") if isinstance(group, dict) else None
    return tuple(weights.get(key) for key in SCHEME_KEYS) if isinstance(weights, dict) else None


@rule(
    "C07",
    "what is dense is ignored, or no target covers it",
    evidence="vllm#53387; sglang#38574; engines' find_matched_target",
    remedy="ckpt ignore SRC derive",
    versions="vLLM before 0.25 is silent or raises KeyError, later ones raise ValueError",
)
def dense_but_targeted(case: Case) -> Iterable[Hit]:
    yield from mismatch_hits(case, "C07", lambda one: targeted(case, one), _ignore_it)


def _ignore_it(mismatch: Mismatch) -> str:
    return DERIVE if mismatch.entries else "Quantize the experts of these layers, too"


def targeted(case: Case, mismatch: Mismatch) -> str:
    """Why a dense module is built packed."""
    if not mismatch.entries:
        return "experts stored dense one by one, which transformers takes for packed whatever is ignored"
    targets = ", ".join(f"'{entry}'" for entry in mismatch.entries)
    found = f"stored dense, covered by {targets} and not ignored"
    parent = _parent_entry(case, mismatch.slot.name)
    return f"{found}: '{parent}' is a whole name, not a prefix" if parent else found


def _parent_entry(case: Case, module: str) -> str | None:
    """An exact ignore entry that names a parent of `module`, as if it covered what is inside."""
    while "." in module:
        module = module.rpartition(".")[0]
        if module in case.ignored:
            return module
    return None


@rule(
    "C08",
    "what is packed is covered by a target and not ignored",
    evidence="llm-compressor#1820; engines' should_ignore_layer",
    remedy="ckpt ignore SRC remove ENTRY",
    versions="vLLM before 0.25 is silent or raises KeyError, later ones raise ValueError",
)
def packed_but_dense(case: Case) -> Iterable[Hit]:
    yield from mismatch_hits(case, "C08", _not_targeted, _retarget)


def _not_targeted(mismatch: Mismatch) -> str:
    ignored = [one.resolution.entry for one in mismatch.failures if one.resolution.ignored]
    if ignored:
        return f"stored packed, ignored by '{ignored[0]}'"
    return f"stored packed; '{mismatch.blamed}' does not reach it" if mismatch.blamed else "stored packed, no target"


def _retarget(mismatch: Mismatch) -> str:
    ignored = [one.resolution.entry for one in mismatch.failures if one.resolution.ignored]
    if mismatch.slot.kind == "head":
        return "ckpt int8-head SRC --base BASE"
    if any(one.resolution.scope == "draft" for one in mismatch.failures):
        return f"ckpt graft-mtp SRC --base BASE, or ckpt ignore SRC remove '{ignored[0]}'" if ignored else DERIVE
    return f"ckpt ignore SRC remove '{ignored[0]}'" if ignored else "Add a target to the config group of its scheme"


@rule(
    "C09",
    "the shards of a fused layer are stored and listed alike",
    engines=("vllm", "sglang"),
    evidence="auto-round#2174; vLLM should_ignore_layer: Found different quantization schemes for the shards",
    remedy="ckpt ignore SRC derive",
)
def fused_shards(case: Case) -> Iterable[Hit]:
    yield from _load_errors(case, "shards", "ValueError: found different quantization schemes for the shards", DERIVE)
    unbuilt = {error.layer for resolved in case.resolved for error in resolved.errors if error.fault == "shards"}
    torn: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in torn_layers(case):
        if one.layer in unbuilt:
            continue
        parts = ", ".join(name.rpartition(".")[2] for name in one.packed)
        torn[f"of its shards only {parts} stored packed"][one.engine.label] += [one.layer]
    for found, layers in torn.items():
        names = list(dict.fromkeys(name for group in layers.values() for name in group))
        remedy = "Quantize all shards or none: ckpt quantize SRC --target ..."
        consequence = "the layer is built in one piece, so one part of it finds no parameter"
        yield Hit(folded(names), found, consequence, remedy, engines=tuple(layers), count=len(names))


@rule(
    "C10",
    "all experts of a layer are stored and listed as expert 0",
    engines=("vllm", "sglang"),
    evidence="vLLM get_moe_method looks at experts.0.{gate,up,down}_proj only",
    remedy="ckpt ignore SRC derive",
)
def experts_alike(case: Case) -> Iterable[Hit]:
    consequence = "ValueError: All MoE projections need to have same quantization scheme"
    told = {owner for layers in _wide_entries(case).values() for owner, _ in layers}
    yield from _load_errors(case, "experts", consequence, DERIVE, told)
    found = "stored otherwise than most experts of its layer, which are built as expert 0 is listed"
    yield from mismatch_hits(case, "C10", lambda one: f"{found}: {one.stored}", lambda one: "ckpt quantize SRC")


@rule(
    "C13",
    "no ignore entry covers packed modules in passing",
    cost="config",
    evidence="sglang#32736: SGLang compares exact entries with the ends of names; re:.*gate.* covers gate_proj",
    remedy=DERIVE,
)
def wide_entries(case: Case) -> Iterable[Hit]:
    """A regex that is meant for routers or attention and covers experts, too; or an exact name that ends theirs."""
    yield from mismatch_hits(case, "C13", lambda one: f"stored packed, {_in_passing(one)}", lambda one: DERIVE)
    consequence = "ValueError: All MoE projections need to have same quantization scheme"
    for entry, layers in _wide_entries(case).items():
        found = f"'{entry}' covers only some of expert 0's projections, and dense modules beside them"
        owners = list(dict.fromkeys(owner for owner, _ in layers))
        engines = tuple(dict.fromkeys(label for _, label in layers))
        yield Hit(folded(owners), found, consequence, engines=engines, count=len(owners))


def _in_passing(mismatch: Mismatch) -> str:
    entry = next(one.resolution.entry for one in mismatch.failures if one.resolution.ignored)
    why = "also covers what is dense" if str(entry).startswith(PREFIX) else "is the end of its name"
    return f"ignored by '{entry}', which {why}"


def _wide_entries(case: Case) -> dict[str, list[tuple[str, str]]]:
    """Ignore regexes that part the projections of expert 0 while dense modules need them, with (owner, engine)."""
    wide: dict[str, list[tuple[str, str]]] = defaultdict(list)
    owners = {slot.name: slot.owner for slot in case.slots}
    ignore = Entries(entry for entry in ignore_entries(case.quantization or {}) if entry.startswith(PREFIX))
    for resolved in case.resolved:
        for error in resolved.errors:
            names = (f"{error.layer}.0.{part}" for part in PROJECTIONS if error.fault == "experts")
            for entry in dict.fromkeys(filter(None, map(ignore.first, names))):
                if overreaches(case, entry, error.layer):
                    wide[entry].append((owners.get(error.modules[0]) or error.layer, resolved.engine.label))
    return wide


def _load_errors(
    case: Case, fault: str, consequence: str, remedy: str, told: Container[str] = frozenset()
) -> Iterator[Hit]:
    """Errors of the same kind in the same layers are one hit for all engines, without those of layers in `told`."""
    owners = {slot.name: slot.owner for slot in case.slots}
    failing: dict[str, list[str]] = defaultdict(list)
    for resolved in case.resolved:
        for error in resolved.errors:
            for name in error.modules if error.fault == fault else ():
                if (place := owners.get(name) or name) not in told:
                    failing[place].append(resolved.engine.label)
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, labels in failing.items():
        alike[tuple(dict.fromkeys(labels))].append(name)
    for engines, modules in alike.items():
        found = "some of these are ignored and some are not" if fault == "shards" else "expert 0's projections disagree"
        yield Hit(folded(modules), found, consequence, remedy, engines=engines, count=len(modules))


@rule(
    "C14",
    "every linear layer is targeted or ignored",
    severity="warning",
    engines=("sglang",),
    evidence="SGLang find_matched_target: Unable to find matching target",
    remedy="ckpt ignore SRC derive",
)
def uncovered(case: Case) -> Iterable[Hit]:
    dense = {slot.name for slot in case.slots if not slot.packed}
    for resolved in case.resolved:
        names = [name for error in resolved.errors if error.fault == "no-target" for name in error.modules]
        names = [name for name in dict.fromkeys(names) if name in dense]
        if names:
            found = "stored dense, neither targeted nor ignored"
            consequence = "ValueError: Unable to find matching target"
            label = resolved.engine.label
            yield Hit(folded(names), found, consequence, DERIVE, engines=(label,), count=len(names))


@rule(
    "C15",
    "routers are dense, and stay so in every engine",
    evidence="vllm-omni#5573; transformers builds shared_expert_gate as nn.Linear",
    remedy="ckpt ignore SRC derive",
    versions="transformers 5 keeps routers apart; before, they were nn.Linear",
)
def routers(case: Case) -> Iterable[Hit]:
    yield from mismatch_hits(case, "C15", lambda one: _router(case, one), _router_remedy)
    failing = {one.slot.name for one in case.mismatches.get("C15", ())}
    ignore = Entries(ignore_entries(case.quantization or {}))
    open_routers = (
        (slot.name, "not ignored, and covered by a target")
        for slot in case.slots
        if slot.kind == "router" and not slot.packed and slot.name not in failing and not is_draft(case, slot.name)
        if ignore.first(slot.name) is None and case.groups.group(slot.name)
    )
    consequence = "what builds routers as nn.Linear, as older transformers do, expects it packed"
    yield from gather(open_routers, consequence=consequence, remedy=DERIVE, severity="warning", engines=())


def _router(case: Case, mismatch: Mismatch) -> str:
    return "a router stored packed" if mismatch.slot.packed else targeted(case, mismatch)


def _router_remedy(mismatch: Mismatch) -> str:
    return "ckpt graft SRC --from BASE --tensors PATTERN" if mismatch.slot.packed else DERIVE


@rule(
    "C16",
    "the vision tower is ignored by every engine's names",
    evidence="llm-compressor#2641",
    remedy="ckpt ignore SRC add 're:.*visual.*'",
)
def vision(case: Case) -> Iterable[Hit]:
    remedy = "ckpt ignore SRC add 're:.*visual.*'"
    yield from mismatch_hits(case, "C16", lambda one: targeted(case, one), lambda one: remedy)
