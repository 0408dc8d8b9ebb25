"""quantization_config by itself: where it stands, its formats, schemes, targets and the spelling of its entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from checkpoint.patterns import PREFIX, pattern_problems
from verify.case import Case
from verify.claims import is_draft
from verify.descent import EXPERT
from verify.engines import Resolved, concerned, config_groups, group_targets, ignore_entries
from verify.engines.entries import Entries, target_groups
from verify.finding import Severity
from verify.mismatches import Mismatch, mismatch_hits
from verify.registry import Hit, rule

METHOD = "compressed-tensors"
PACKED_FORMAT = "pack-quantized"
ACTIVATION_FORMATS = ("naive-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized")
"""`is_activation_quantization_format` in vLLM's compressed_tensors/utils.py."""
DERIVE = "ckpt ignore SRC derive"
CONFIG = "config.json"


def labels(case: Case, *names: str) -> tuple[str, ...]:
    """How the user asked for those engines of the case that are one of `names`."""
    return tuple(engine.label for engine in concerned(case, *names))


def packed_groups(case: Case) -> set[str]:
    """The groups by which some engine builds a packed module."""
    packed = {slot.name for slot in case.slots if slot.packed}
    return {one.group for resolved in case.resolved for one in resolved if one.group and one.module in packed}


def group_format(quantization: Mapping[str, Any], group: Mapping[str, Any]) -> Any:
    """The format of a group: its own, else that of the whole config."""
    own = group.get("format")
    return quantization.get("format") if own is None else own


@rule(
    "C01",
    "quantization_config is there, once, and says compressed",
    cost="config",
    evidence="vLLM weight_utils.get_quant_config; transformers CompressedTensorsConfig.is_quantization_compressed",
    remedy="Restore quantization_config from the config.json that the exporter wrote",
)
def config_present(case: Case) -> Iterable[Hit]:
    packed = sum(module.packed for module in case.modules.values())
    quantization = case.quantization
    if quantization is None:
        if packed:
            found = f"{packed} modules are packed and there is no quantization_config"
            remedy = "Restore quantization_config from the config.json that the exporter wrote"
            yield Hit(CONFIG, found, "every engine builds them dense and finds no weight for them", remedy)
        return
    yield from _misplaced(case)
    place, method = f"{CONFIG}: quantization_config", quantization.get("quant_method")
    if packed and method != METHOD:
        yield Hit(place, f"quant_method is {method!r} and {packed} modules are packed")
    status = quantization.get("quantization_status")
    concerns = labels(case, "transformers")
    if packed and method == METHOD and status != "compressed" and concerns:
        # Experts are unpacked whatever the status; every other packed module is built dense.
        hurt = any(slot.packed and slot.owner is None and not is_draft(case, slot.name) for slot in case.slots)
        consequence = "builds every linear layer dense: the packed weights are left out"
        remedy = "Set quantization_status to 'compressed'"
        severity: Severity = "error" if hurt else "warning"
        yield Hit(place, f"quantization_status is {status!r}", consequence, remedy, severity, concerns)


def _misplaced(case: Case) -> Iterator[Hit]:
    text = case.config.get("text_config")
    inner = text.get("quantization_config") if isinstance(text, dict) else None
    outer = case.config.get("quantization_config")
    if not isinstance(inner, dict):
        return
    place = f"{CONFIG}: text_config.quantization_config"
    if isinstance(outer, dict) and inner != outer:
        yield Hit(place, "differs from the one at the top level", "engines that read this one build something else")
    elif outer is None:
        consequence = "vLLM 0.24 and transformers 5.17 find it there; other engines read the top level only"
        yield Hit(place, "not at the top level", consequence, "Move it to the top level", "warning")


@rule(
    "C02",
    "packed groups are in format pack-quantized",
    cost="config",
    evidence="sglang#32736; vLLM get_moe_method",
    remedy="Set format to 'pack-quantized'",
    versions="SGLang takes formats by group for linear layers since 0.5.17",
)
def formats(case: Case) -> Iterable[Hit]:
    quantization = case.quantization or {}
    top, used = quantization.get("format"), packed_groups(case)
    for name, group in config_groups(quantization).items():
        found = group_format(quantization, group)
        if name in used and found != PACKED_FORMAT and found not in ACTIVATION_FORMATS:
            # transformers infers the format of a group that states none.
            engines = ("vllm", "sglang") if group.get("format") is None else ("vllm", "sglang", "transformers")
            yield from _format_hit(case, f"config_groups.{name}", f"format {found!r}", engines)
            return
    experts = any(slot.kind == "expert" and slot.packed for slot in case.slots)
    if experts and used and top != PACKED_FORMAT:
        yield from _format_hit(
            case, "format", f"is {top!r} at the top level, which SGLang asks of experts", ("sglang",)
        )


def _format_hit(case: Case, place: str, found: str, engines: tuple[str, ...]) -> Iterator[Hit]:
    if concerns := labels(case, *engines):
        remedy = f"Set it to {PACKED_FORMAT!r}"
        consequence = f"ValueError: only format {PACKED_FORMAT} is supported"
        yield Hit(f"quantization_config.{place}", found, consequence, remedy, engines=concerns)


@rule(
    "C03",
    "no integer group without activations is in an activation format",
    cost="config",
    engines=("vllm", "transformers"),
    evidence="vLLM _quantization_scheme_map_from_config: assert weights.type == FLOAT",
    remedy="Set format to 'pack-quantized'",
)
def activation_formats(case: Case) -> Iterable[Hit]:
    quantization = case.quantization or {}
    for name, group in config_groups(quantization).items():
        found, weights = group_format(quantization, group), group.get("weights")
        integers = isinstance(weights, dict) and weights.get("type", "int") == "int"
        concerns = labels(case, "vllm", *(("transformers",) if group.get("format") else ()))
        if concerns and integers and not group.get("input_activations") and found in ACTIVATION_FORMATS:
            place, remedy = f"quantization_config.config_groups.{name}", f"Set the format to {PACKED_FORMAT!r}"
            consequence = "vLLM: a bare AssertionError while parsing; transformers: RuntimeError in the conversion"
            yield Hit(place, f"weight-only, format {found!r}", consequence, remedy, engines=concerns)


@rule(
    "C11",
    "every regex reaches its modules under the engine's own names",
    cost="config",
    evidence="llm-compressor#2641; vLLM apply_vllm_mapper translates exact names only",
    remedy="ckpt ignore SRC derive",
)
def regexes(case: Case) -> Iterable[Hit]:
    quantization = case.quantization or {}
    concerns = labels(case, "vllm", "sglang")
    for problem in pattern_problems([*ignore_entries(quantization), *target_groups(quantization)]):
        # compressed-tensors stops at the first entry that covers a module, so it may never come to this one.
        severity: Severity = "error" if concerns else "warning"
        slow = problem.code == "pattern-slow"
        consequence = "loading, which holds it against every module, does not end" if slow else "re.error while loading"
        yield Hit("quantization_config", problem.found, consequence, "", severity, concerns or None)
    yield from mismatch_hits(case, "C11", _anchored, _unanchored, cause=lambda one: (one.blamed, one.stored))
    blamed = {one.blamed for one in case.mismatches.get("C11", ())}
    for entry in ignore_entries(quantization):
        missed = _missed_by(case, entry) if entry.startswith(PREFIX) and entry not in blamed else ()
        if missed:
            found = "covers modules by their names in the checkpoint, not by the engine's, where nothing depends on it"
            place = f"quantization_config.ignore: {entry}"
            yield Hit(place, found, remedy=f"ckpt ignore SRC remove '{entry}'", severity="note", engines=missed)


def _anchored(mismatch: Mismatch) -> str:
    first = mismatch.failures[0]
    return (
        f"'{mismatch.blamed}' covers the names in the checkpoint, not {first.engine.title}'s: {first.resolution.layer}"
    )


def _unanchored(mismatch: Mismatch) -> str:
    return "Begin the regex with '.*'" if mismatch.slot.packed else f"{DERIVE}, or begin the regex with '.*'"


def _missed_by(case: Case, entry: str) -> tuple[str, ...]:
    """The engines to whose names the regex says nothing, although it covers names in the checkpoint."""
    entries = Entries([entry])
    covered = [slot.name for slot in case.slots if slot.owner is None and entries.first(slot.name)]
    missed = []
    for resolved in case.resolved:
        names = {name: _engine_names(case, resolved, name) for name in covered}
        renamed = any(spellings - {name} for name, spellings in names.items())
        if renamed and not any(entries.first(one) for spellings in names.values() for one in spellings):
            missed.append(resolved.engine.label)
    return tuple(missed)


def _engine_names(case: Case, resolved: Resolved, module: str) -> set[str]:
    """What the engine calls the module, in the scopes that load it."""
    family = case.family.name if case.family else None
    views = (resolved.engine.view(family, scope) for scope in resolved.scopes(module))
    return {view.engine_name(module) for view in views if view}


@rule(
    "C12",
    "every entry names a module",
    severity="warning",
    cost="config",
    evidence="vllm#40252: a stale ignore list",
    remedy="ckpt ignore SRC remove ENTRY",
)
def stale_entries(case: Case) -> Iterable[Hit]:
    for entry in ignore_entries(case.quantization or {}):
        if not pattern_problems([entry]) and not _names_something(case, entry):
            found = "covers no module of the checkpoint"
            consequence = "stale or misspelt: what it was meant for is not ignored by it"
            remedy = f"ckpt ignore SRC remove '{entry}'"
            yield Hit(f"quantization_config.ignore: {entry}", found, consequence, remedy)


def _names_something(case: Case, entry: str) -> bool:
    """Does the entry cover, or name the parent of, a module stored here or known to the family?"""
    if not entry.startswith(PREFIX):
        inside = f"{entry}."
        known = entry in case.modules or _is_wanted(case, entry)
        return known or any(name.startswith(inside) for name in case.modules)
    entries = Entries([entry])
    spellings = (layer for resolved in case.resolved for layer in {one.layer for one in resolved})
    fused = (f"{slot.owner}.0.gate_proj" for slot in case.slots if slot.owner)
    unstored = (slot.name for slot in case.slots if slot.name not in case.modules)
    named = (case.modules, case.weights, fused, unstored, spellings)
    return any(entries.first(name) for names in named for name in names)


def _is_wanted(case: Case, module: str) -> bool:
    """Should the module be stored, by itself or as a part of fused experts?"""
    if case.wanted is None:
        return case.family is not None and case.family.kind(module) is not None
    if module in case.weights:
        return True
    expert = EXPERT.fullmatch(module)
    return any(slot.name == module or (expert and slot.owner == expert["owner"]) for slot in case.slots)


@rule(
    "C18",
    "no sparsity, and a KV cache scheme of 8-bit floats or none",
    cost="config",
    engines=("vllm",),
    evidence="vLLM _parse_sparsity_config, validate_kv_cache_scheme",
    remedy="Set sparsity_config to {} and kv_cache_scheme to null",
)
def sparsity_and_cache(case: Case) -> Iterable[Hit]:
    quantization, concerns = case.quantization or {}, labels(case, "vllm")
    sparsity, cache = quantization.get("sparsity_config"), quantization.get("kv_cache_scheme")
    if concerns and isinstance(sparsity, dict) and sparsity.get("targets"):
        consequence = "DeprecationWarning 'Sparsity support has been removed', raised"
        place = "quantization_config.sparsity_config"
        yield Hit(place, f"targets {sparsity['targets']}", consequence, "Set it to {}", engines=concerns)
    if concerns and isinstance(cache, dict) and (cache.get("type"), cache.get("num_bits")) != ("float", 8):
        found = f"type {cache.get('type')!r}, num_bits {cache.get('num_bits')}"
        place, consequence = "quantization_config.kv_cache_scheme", "NotImplementedError: 8-bit floats only"
        yield Hit(place, found, consequence, engines=concerns)


@rule(
    "C19",
    "no two groups have the same target",
    cost="config",
    evidence="one mapping of target to scheme in all engines",
    remedy="Keep the target in one group",
)
def target_twice(case: Case) -> Iterable[Hit]:
    for target, holders in repeated_targets(case).items():
        found = f"target '{target}' stands in {', '.join(holders)}"
        place, consequence = "quantization_config.config_groups", f"only {holders[-1]} counts"
        yield Hit(place, found, consequence, "Keep it in one group")


def repeated_targets(case: Case) -> dict[str, list[str]]:
    """The targets that several groups have, with the names of these."""
    holders: dict[str, list[str]] = {}
    for name, group in config_groups(case.quantization or {}).items():
        for target in dict.fromkeys(group_targets(group)):
            holders.setdefault(target, []).append(name)
    return {target: names for target, names in holders.items() if len(names) > 1}
