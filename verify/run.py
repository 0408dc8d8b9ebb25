"""Running the rules over a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from checkpoint import Checkpoint, Files, default_workers, open_checkpoint, survey
from checkpoint.folder import without_collection
from checkpoint.matching import PatternTooSlow, start_over
from checkpoint.patterns import compiled
from verify.case import ENGINES, Case, Notes, Progress, silent
from verify.engines import load_engine
from verify.excerpt import excerpt, is_for_excerpts
from verify.finding import Finding
from verify.measuring import natural_order
from verify.registry import RULES, Level, Rule
from verify.report import Report, worst_first
from verify.rules import load_rules

FORMAT_FREE = ("F", "X", "S01", "S02")
"""Rules that hold of any checkpoint, whatever its weights are stored as: ids, or what they begin with."""

SUBJECTS = "FITCMLOXNS"
"""The first letters of rule ids, what is unreadable first: files, inventory, triplets, config, draft head, head,
observed faults, side files, content, schemas."""

MOST_SLOW = 3
"""Regular expressions that may take too long before a checkpoint is refused for them."""

CONTENT_LEVELS: tuple[Level, ...] = ("sample", "full")

SUPERSEDED: Mapping[str, tuple[str, ...]] = {"S02": ("F09", "F15"), "S03": ("C",)}
"""Schema rules that stay silent where a rule with a reason has spoken on the same document."""


def verify(
    checkpoint: Checkpoint | Path | str,
    *,
    base: Checkpoint | Path | str | None = None,
    schema: str | Mapping[str, Any] | None = None,
    engines: Sequence[str] = ENGINES,
    tp: int | None = None,
    level: Level = "headers",
    only: Collection[str] | None = None,
    measure: bool = False,
    workers: int | None = None,
    progress: Progress = silent,
) -> Report:
    """Judge `checkpoint` by every rule that applies, against `base` where one is given.

    `schema` is a profile's name or a JSON Schema for the layout document; `engines` are names, or `NAME@VERSION`;
    `only` keeps the rules whose ids are in it or begin with one of it; `measure` keeps the errors of packed weights for
    the report, where they are compared with a base; `workers` is the number of threads that read tensors. What is wrong
    with `checkpoint` is found, not raised; UnreadableCheckpoint is raised where there is none at all or `base` is not
    sound, UnknownEngine where an engine is none of ours.
    """
    for engine in engines:
        load_engine(engine)
    with Files() as files:
        case = Case(
            checkpoint if isinstance(checkpoint, Checkpoint) else survey(checkpoint),
            base if base is None or isinstance(base, Checkpoint) else open_checkpoint(base),
            engines=tuple(engines),
            tp=tp,
            level=level,
            schema=schema,
            measure=measure,
            workers=workers or default_workers(),
            files=files,
            progress=progress,
        )
        return judge(case, only)


def judge(case: Case, only: Collection[str] | None = None) -> Report:
    """Run the rules over `case`.

    What a regular expression that takes too long was to tell them is not known, so they begin anew without it, and one
    of them tells of it. Raises PatternTooSlow where there are too many of these.
    """
    start_over()
    for _ in range(MOST_SLOW):
        try:
            return _judged(case, only)
        except PatternTooSlow:
            compiled.cache_clear()
            case = replace(case, notes=Notes())
    return _judged(case, only)


def _judged(case: Case, only: Collection[str] | None) -> Report:
    load_rules()
    rules = list(applicable(case, only))
    case = replace(case, running=frozenset(rule.id for rule in rules))
    with without_collection():
        findings = [finding for finding in _found(case, rules) if _concerns(case, finding)]
    return Report(
        checkpoint=str(case.checkpoint.root),
        findings=worst_first(_without_superseded(findings)),
        base=str(case.base.root) if case.base else None,
        engines=case.engines,
        level=case.level,
        tensors=len(case.checkpoint.tensors),
        rules=tuple(rule.id for rule in rules),
        facts=tuple(case.notes.facts),
        skipped=dict(case.notes.skipped),
        measurements=tuple(sorted(case.notes.measurements, key=natural_order)),
    )


def _found(case: Case, rules: Iterable[Rule]) -> Iterator[Finding]:
    """What the rules find. Those that find nothing in an excerpt need not look at the whole."""
    silent = _silent(case, [rule for rule in rules if is_for_excerpts(rule)])
    for rule in rules:
        if rule.id in silent:
            case.notes.facts += silent[rule.id]
        else:
            yield from rule.run(case)


def _silent(case: Case, rules: Sequence[Rule]) -> dict[str, list[str]]:
    """What `rules` learned, by id, if none of them finds anything in an excerpt of the case."""
    part = excerpt(case) if rules else None
    if part is None:
        return {}
    learned: dict[str, list[str]] = {}
    for rule in rules:
        known = len(part.notes.facts)
        if any(True for _ in rule.run(part)):
            return {}
        learned[rule.id] = part.notes.facts[known:]
    case.notes.skipped.update(part.notes.skipped)
    return learned


def applicable(case: Case, only: Collection[str] | None) -> Iterator[Rule]:
    """The rules to run, in their order; what is left out, and why, goes to the notes."""
    unsupported = unsupported_format(case)
    if unsupported:
        case.notes.skip("modules, config groups and contents", f"{unsupported} is not supported: structure only")
    for rule in sorted(RULES.values(), key=_position):
        if only is not None and not rule.id.startswith(tuple(only)):
            continue
        if unsupported and not rule.id.startswith(FORMAT_FREE):
            continue
        if rule.cost == "content" and case.level not in CONTENT_LEVELS:
            continue
        if rule.needs_base and case.base is None:
            case.notes.skip("what changed since the base", "no base was given")
            continue
        yield rule


def _position(rule: Rule) -> tuple[int, str]:
    """By subject in `SUBJECTS`' order, then by number; a letter that is not in it comes last."""
    found = SUBJECTS.find(rule.id[0])
    return found if found >= 0 else len(SUBJECTS), rule.id


def unsupported_format(case: Case) -> str | None:
    """What the weights are stored as, where it is none of ours; None for dense and integer weight-only checkpoints."""
    quantization = case.quantization
    if quantization is None:
        return None
    method = quantization.get("quant_method", "compressed-tensors")
    if method != "compressed-tensors":
        return f"quant_method {method}"
    groups = quantization.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if isinstance(group, dict) and (found := _unsupported_group(group)):
            return f"{name} ({found})"
    return None


def _unsupported_group(group: Mapping[str, Any]) -> str | None:
    weights = group.get("weights")
    if isinstance(weights, dict) and weights.get("type", "int") != "int":
        return f"{weights['type']} weights"
    if group.get("input_activations") is not None:
        return "quantized activations"
    return None


def _concerns(case: Case, finding: Finding) -> bool:
    """Is the finding about an engine that was asked for, or about all?"""
    asked = {engine.partition("@")[0] for engine in case.engines}
    return not finding.engines or any(engine.partition("@")[0] in asked for engine in finding.engines)


def _without_superseded(findings: list[Finding]) -> list[Finding]:
    said = {finding.rule for finding in findings if finding.severity == "error"}
    silenced = {rule for rule, causes in SUPERSEDED.items() if any(one.startswith(causes) for one in said)}
    return [finding for finding in findings if finding.rule not in silenced]
