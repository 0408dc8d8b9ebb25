"""RTN of selected modules to compressed-tensors pack-quantized."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from checkpoint import CONFIG, Problem, TensorRef
from checkpoint.draft import Draft, Source
from checkpoint.families import Family, find_family
from checkpoint.folding import fold
from checkpoint.patterns import first_match, pattern_problems
from surgery.ignore import complete_ignore
from surgery.packable import head_problems, matrix_problems, tied_problems
from surgery.quantization_config import KEY, new_config, quantized_by, with_quantization
from surgery.scheme import HEAD, Group, Maths
from surgery.selection import LINEAR, Candidate, block_of, candidates, choose, packed_modules
from surgery.work import PackRows

Chosen = dict[str, tuple[Candidate, Group]]


def quantize(draft: Draft, groups: Sequence[Group], *, ignore: Sequence[str] = (), maths: Maths = "fp32") -> Draft:
    """Pack every module that a group targets and `ignore` does not cover; the first group that matches decides.

    Fused experts become per-expert modules where any of their kind is packed, and keep their layout elsewhere. The
    ignore list of the result is derived from what stays dense, in entries that every engine reads alike, however
    `ignore` spelled it.
    """
    groups = tuple(groups)
    problems = list(_request_problems(draft, groups, ignore))
    if problems:
        return draft.refusing(problems)
    family = find_family(draft.config.value)
    pool = candidates(draft)
    chosen, used = _select(pool, groups, ignore, family)
    problems += _unused_targets(groups, used)
    problems += _module_problems(draft, chosen, family)
    problems += _split_problems(draft, family)
    problems += _sibling_problems(pool, chosen, family)
    problems += _expert_problems(pool, chosen, family)
    if problems:
        return draft.refusing(problems, _fit(draft, chosen, family, maths))
    packed = draft.replaced(_replacements(pool, chosen, family, maths))
    packed = with_quantization(packed, new_config(groups, complete_ignore(packed, ())))
    schemes = ", ".join(dict.fromkeys(str(group.scheme) for _, group in chosen.values()))
    parameters = {"groups": [group.parameters for group in groups], "ignore": list(ignore), "maths": maths}
    return packed.noting("quantize", f"{len(chosen):,} modules to {schemes}, {maths} maths", parameters)


def _request_problems(draft: Draft, groups: Sequence[Group], ignore: Sequence[str]) -> Iterator[Problem]:
    targets = [target for group in groups for target in group.targets]
    yield from pattern_problems([*targets, *ignore])
    if not targets:
        yield Problem("no-target", "no module was targeted", remedy="Give --preset, or --target")
    method = quantized_by(draft.config.value)
    if method is not None or packed_modules(draft):
        found = f"already has a {KEY} ({method})" if method else "already holds packed modules"
        remedy = "Start from the unquantized base; to pack its head only, use ckpt int8-head"
        yield Problem("already-quantized", found, CONFIG, remedy=remedy)
    if LINEAR in targets and find_family(draft.config.value) is None:
        model = draft.config.value.get("model_type")
        remedy = "Target modules by name or re: pattern"
        yield Problem("family-unknown", f"model_type {model!r}: cannot tell what is Linear", CONFIG, remedy=remedy)


def _select(
    pool: Sequence[Candidate], groups: tuple[Group, ...], ignore: Sequence[str], family: Family | None
) -> tuple[Chosen, set[tuple[Group, str]]]:
    """What is packed and how, and which targets of which group covered something."""
    chosen: Chosen = {}
    used: set[tuple[Group, str]] = set()
    for candidate in pool:
        if first_match(ignore, candidate.module) is not None:
            continue
        found = choose(groups, candidate.module, family)
        if found is not None:
            chosen[candidate.module] = (candidate, found[0])
            used.add(found)
    return chosen, used


def _unused_targets(groups: Sequence[Group], used: set[tuple[Group, str]]) -> Iterator[Problem]:
    for group in groups:
        for target in group.targets:
            if (group, target) not in used:
                found = f"target '{target}' selects no module that --ignore and earlier targets leave"
                remedy = "Names are module names without .weight; `ckpt inspect` lists them"
                yield Problem("target-unmatched", found, remedy=remedy)


def _module_problems(draft: Draft, chosen: Chosen, family: Family | None) -> Iterator[Problem]:
    """What makes a chosen module impossible to pack, modules with the same fault told once."""
    faults: dict[Problem, list[Candidate]] = defaultdict(list)
    for candidate, group in chosen.values():
        for fault in _faults(draft, candidate, group, family):
            faults[fault].append(candidate)
    for fault, faulty in faults.items():
        files = {candidate.region.path.name for candidate in faulty}
        file = fault.file or (files.pop() if len(files) == 1 else None)
        for folded in fold((candidate.module, 0) for candidate in faulty):
            remedy = fault.remedy or "Add it to --ignore, or narrow the target"
            yield replace(fault, file=file, tensor=folded.pattern, remedy=remedy)


def _faults(draft: Draft, candidate: Candidate, group: Group, family: Family | None) -> Iterator[Problem]:
    for rule in family.never_packed if family else ():
        if re.fullmatch(rule.pattern, candidate.module):
            yield Problem("never-packed", f"must stay dense: {rule.reason}")
            return
    yield from matrix_problems(candidate.region, group.scheme)
    if candidate.module == HEAD:
        yield from head_problems(candidate.region, draft.config.value)
        yield from tied_problems(draft.config.value)


def _fit(draft: Draft, chosen: Chosen, family: Family | None, maths: Maths) -> Iterator[PackRows]:
    """The work on modules that have no fault of their own."""
    for module, (candidate, group) in chosen.items():
        if not any(True for _ in _faults(draft, candidate, group, family)):
            yield PackRows(candidate.region, group.scheme, maths, f"{module}.weight")


def _split_problems(draft: Draft, family: Family | None) -> Iterator[Problem]:
    """Fused experts whose rows cannot be shared out to their projections."""
    for name, source in draft.tensors.items():
        split = family.fused_split(name) if family else None
        if split and isinstance(source, TensorRef) and len(source.shape) == 3 and source.shape[1] % len(split.parts):
            found = f"{source.shape[1]} rows, stacked from {', '.join(split.parts)}"
            yield Problem("experts-uneven", found, source.path.name, name, f"a multiple of {len(split.parts)}")


def _sibling_problems(pool: Iterable[Candidate], chosen: Chosen, family: Family | None) -> Iterator[Problem]:
    """Projections that an engine fuses into one matrix must share one scheme, or all stay dense."""
    leaves = {leaf: row for row in (family.fused_siblings if family else ()) for leaf in row}
    sets: dict[tuple[str, tuple[str, ...]], dict[str, str]] = defaultdict(dict)
    for candidate in pool:
        owner, _, leaf = candidate.module.rpartition(".")
        if leaf in leaves:
            sets[owner, leaves[leaf]][leaf] = _state(candidate, chosen)
    uneven = [
        (owner, ", ".join(f"{leaf} {state}" for leaf, state in states.items()))
        for (owner, _), states in sets.items()
        if len(set(states.values())) > 1
    ]
    for folded in fold(uneven):
        remedy = "Engines fuse them into one matrix: give them one scheme, or ignore all"
        yield Problem("siblings-differ", folded.state, tensor=folded.pattern, expected="one scheme", remedy=remedy)


def _expert_problems(pool: Iterable[Candidate], chosen: Chosen, family: Family | None) -> Iterator[Problem]:
    """The experts of one layer are all packed alike or all left dense; engines look at the first alone."""
    states: dict[str, set[str]] = defaultdict(set)
    for candidate in pool:
        block = block_of(candidate, family)
        if block is not None:
            states[block].add(_state(candidate, chosen))
    uneven = [(block, ", ".join(sorted(found))) for block, found in states.items() if len(found) > 1]
    for folded in fold(uneven):
        remedy = "Engines take one scheme for all experts of a layer: target gate_proj, up_proj and down_proj alike"
        found = f"experts would be {folded.state}"
        yield Problem("experts-differ", found, tensor=folded.pattern, expected="one scheme", remedy=remedy)


def _state(candidate: Candidate, chosen: Chosen) -> str:
    found = chosen.get(candidate.module)
    return str(found[1].scheme) if found else "dense"


def _replacements(
    pool: Iterable[Candidate], chosen: Chosen, family: Family | None, maths: Maths
) -> dict[str, dict[str, Source]]:
    """tensor -> the tensors that take its place, by name: packed ones, and single dense experts beside packed ones."""
    changes: dict[str, dict[str, Source]] = defaultdict(dict)
    apart = {_is_mtp(candidate, family) for candidate, _ in chosen.values() if candidate.fused}
    for candidate in pool:
        module, found = candidate.module, chosen.get(candidate.module)
        if found is not None:
            work = PackRows(candidate.region, found[1].scheme, maths, f"{module}.weight")
            changes[candidate.tensor].update({f"{module}.{suffix}": out for suffix, out in work.computed().items()})
        elif candidate.fused and _is_mtp(candidate, family) in apart:
            # once SGLang has met a fused parameter of a model, it skips experts that are stored one by one
            changes[candidate.tensor][f"{module}.weight"] = candidate.region
    return changes


def _is_mtp(candidate: Candidate, family: Family | None) -> bool:
    """Is it part of the MTP head, which engines load as a model of its own?"""
    return bool(family and family.mtp and candidate.module.startswith(family.mtp.prefix))
