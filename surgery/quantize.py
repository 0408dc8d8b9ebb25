"""RTN of selected modules to compressed-tensors pack-quantized."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from checkpoint import Problem, split_name
from checkpoint.draft import Draft, Source
from checkpoint.dtypes import FLOATS
from checkpoint.families import Family, find_family
from checkpoint.folder import CONFIG
from checkpoint.folding import fold
from checkpoint.patterns import first_match, matches, pattern_problems
from surgery.ignore import complete_ignore
from surgery.quantization_config import KEY, current, new_config, with_quantization
from surgery.scheme import GROUP_SIZES, Group, Maths
from surgery.selection import LINEAR, Candidate, candidates, choose, packed_modules
from surgery.work import PackRows

Chosen = dict[str, tuple[Candidate, Group]]


def quantize(draft: Draft, groups: Sequence[Group], *, ignore: Sequence[str] = (), maths: Maths = "fp32") -> Draft:
    """Pack every module that a group targets and `ignore` does not cover; the first group that matches decides.

    Fused experts become per-expert modules where they are packed and keep their layout where not. The ignore list of
    the result is `ignore`, as far as it covers anything, and what else is needed for engines to agree on every module.
    """
    groups = tuple(groups)
    problems = list(_request_problems(draft, groups, ignore))
    if problems:
        return draft.refusing(problems)
    family = find_family(draft.config.value)
    pool = candidates(draft)
    chosen, used = _select(pool, groups, ignore, family)
    problems += _unused_targets(groups, used)
    problems += _module_problems(chosen, family)
    problems += _sibling_problems(pool, chosen, family)
    problems += _fused_problems(pool, chosen)
    if problems:
        return draft.refusing(problems)
    packed = draft.replaced(_replacements(chosen, maths))
    entries = [entry for entry in ignore if any(matches(entry, c.module) for c in pool if c.module not in chosen)]
    packed = with_quantization(packed, new_config(groups, complete_ignore(packed, entries)))
    schemes = ", ".join(dict.fromkeys(str(group.scheme) for _, group in chosen.values()))
    return packed.noting("quantize", f"{len(chosen):,} modules to {schemes}, {maths} maths")


def _request_problems(draft: Draft, groups: Sequence[Group], ignore: Sequence[str]) -> Iterator[Problem]:
    targets = [target for group in groups for target in group.targets]
    yield from pattern_problems([*targets, *ignore])
    if not targets:
        yield Problem("no-target", "no module was targeted", remedy="Give --preset, or --target")
    config = current(draft)
    if config is not None or packed_modules(draft):
        method = (config or {}).get("quant_method", "unknown")
        remedy = "Start from the unquantized base; to pack its head only, use ckpt int8-head"
        yield Problem("already-quantized", f"already has a {KEY} ({method})", CONFIG, remedy=remedy)
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
                remedy = "Names are module names without .weight; `ckpt inspect` lists them"
                yield Problem("target-unmatched", f"target {target!r} selects no module", remedy=remedy)


def _module_problems(chosen: Chosen, family: Family | None) -> Iterator[Problem]:
    """What makes a chosen module impossible to pack, modules with the same fault told once."""
    faults: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for module, (candidate, group) in chosen.items():
        for fault in _faults(candidate, group, family):
            faults[fault].append(module)
    for (code, found, expected, remedy), modules in faults.items():
        for folded in fold((module, 0) for module in modules):
            yield Problem(code, found, tensor=folded.pattern, expected=expected, remedy=remedy)


def _faults(candidate: Candidate, group: Group, family: Family | None) -> Iterator[tuple[str, str, str, str]]:
    ref, size = candidate.region, group.scheme.group_size
    for rule in family.never_packed if family else ():
        if re.fullmatch(rule.pattern, candidate.module):
            yield "never-packed", f"must stay dense: {rule.reason}", "", "Add it to --ignore, or narrow the target"
            return
    if len(ref.shape) != 2:
        yield "not-a-matrix", f"shape {list(ref.shape)}", "a matrix [rows, columns]", "Add it to --ignore"
        return
    if ref.dtype not in FLOATS:
        yield "dtype-unsupported", f"dtype {ref.dtype}", "BF16, F16 or F32", "Start from the unquantized base"
    if 0 in ref.shape:
        yield "empty", f"shape {list(ref.shape)}", "at least one row and column", "Add it to --ignore"
    elif size and ref.shape[1] % size:
        fitting = [str(n) for n in GROUP_SIZES if ref.shape[1] % n == 0] + ["channel"]
        found = f"{ref.shape[1]} columns do not divide into groups of {size}"
        yield "group-size", found, "", f"Group sizes that do: {', '.join(fitting)}"


def _sibling_problems(pool: Iterable[Candidate], chosen: Chosen, family: Family | None) -> Iterator[Problem]:
    """Projections that an engine fuses into one matrix must share one scheme, or all stay dense."""
    leaves = {leaf: row for row in (family.fused_siblings if family else ()) for leaf in row}
    sets: dict[tuple[str, tuple[str, ...]], dict[str, str]] = defaultdict(dict)
    for candidate in pool:
        owner, _, leaf = candidate.module.rpartition(".")
        if leaf in leaves:
            group = chosen.get(candidate.module)
            sets[owner, leaves[leaf]][leaf] = str(group[1].scheme) if group else "dense"
    uneven: dict[str, list[str]] = defaultdict(list)
    for (owner, _), states in sets.items():
        if len(set(states.values())) > 1:
            uneven[", ".join(f"{leaf} {state}" for leaf, state in states.items())].append(owner)
    for found, owners in uneven.items():
        for folded in fold((owner, 0) for owner in owners):
            remedy = "Engines fuse them into one matrix: give them one scheme, or ignore all"
            yield Problem("siblings-differ", found, tensor=folded.pattern, expected="one scheme", remedy=remedy)


def _fused_problems(pool: Iterable[Candidate], chosen: Chosen) -> Iterator[Problem]:
    """The experts of one layer are all packed alike or all left fused; engines look at the first alone."""
    states: dict[str, set[str]] = defaultdict(set)
    for candidate in pool:
        if candidate.fused:
            group = chosen.get(candidate.module)
            states[split_name(candidate.tensor)[0].rpartition(".")[0]].add(str(group[1].scheme) if group else "dense")
    uneven = [(owner, ", ".join(sorted(found))) for owner, found in states.items() if len(found) > 1]
    for folded in fold(uneven):
        remedy = "Engines take one scheme for all experts of a layer: target gate_proj, up_proj and down_proj alike"
        found = f"experts would be {folded.state}"
        yield Problem("experts-differ", found, tensor=folded.pattern, expected="one scheme", remedy=remedy)


def _replacements(chosen: Chosen, maths: Maths) -> dict[str, dict[str, Source]]:
    """tensor -> the packed tensors that take its place, by name."""
    changes: dict[str, dict[str, Source]] = defaultdict(dict)
    for module, (candidate, group) in chosen.items():
        work = PackRows(candidate.region, group.scheme, maths, f"{module}.weight")
        changes[candidate.tensor].update({f"{module}.{suffix}": source for suffix, source in work.computed().items()})
    return changes
