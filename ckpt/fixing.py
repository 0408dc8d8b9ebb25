"""From findings to the operations that mend them, composed as one draft and so one write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoint import Checkpoint, Draft, Problem, open_checkpoint
from checkpoint.folding import fold
from checkpoint.patterns import matches, pattern_problems
from ckpt.comparing import compared
from ckpt.options import Writing
from ckpt.writing import carry_out
from surgery import Difference, derive, graft_mtp, lineage_problems, restore_dense, restore_files
from surgery.quantization_config import current, with_quantization
from surgery.scheme import HEAD, HEAD_TARGET
from surgery.selection import LINEAR
from verify import Finding, Report
from verify.reports.wording import brief_place

Operation = Callable[[Draft], Draft]

ORDER = ("graft-mtp", "restore-dense", "restore-files", "target-head", "ignore", "rewrite")
"""The operations in the order in which they are composed: config.json comes from the base before it is edited."""

IDLE = "its operation finds nothing to change"

_COMMANDS = {"graft-mtp": "graft-mtp", "graft": "restore-dense", "restore-files": "restore-files", "ignore": "ignore"}
"""The command that a finding's remedy names, and the operation here that does as much."""


@dataclass(frozen=True)
class Mending:
    """`draft` mends the findings in `mended`; for each other one, why nothing here does."""

    draft: Draft
    mended: tuple[Finding, ...]
    left: tuple[tuple[Finding, str], ...]


def operation_for(finding: Finding) -> str | None:
    """The operation that mends the finding; None where there is none."""
    if finding.rule == "C17" and HEAD_TARGET in finding.remedy:
        return "target-head"
    if "any ckpt operation" in finding.remedy:
        return "rewrite"
    command = re.search(r"\bckpt ([a-z0-9-]+)", finding.remedy)
    return _COMMANDS.get(command[1]) if command else None


def mend(
    findings: Sequence[Finding], origin: Checkpoint, base: Checkpoint | None, differences: Sequence[Difference] = ()
) -> Mending:
    """Compose what mends `findings`. An operation that would be refused is left out, and its findings stay.

    `differences` is what `compare_dense` found; those that no rounding explains are not put back, since a smoothing
    step may have meant them. Lineage is the caller's to check.
    """
    draft, why = Draft.of(origin), dict.fromkeys(ORDER, "")
    wanted = {operation_for(finding) for finding in findings}
    operations = _operations(base, differences)
    for name in ORDER:
        if name not in wanted:
            continue
        if name not in operations:
            why[name] = "needs the base: --base"
            continue
        after = operations[name](draft)
        why[name] = _refusal(after.problems) or ("" if after.steps != draft.steps else IDLE)
        draft = after if not why[name] else draft
    reasons = [(finding, _why(finding, why)) for finding in findings]
    mended = tuple(finding for finding, reason in reasons if not reason)
    return Mending(draft, mended, tuple((finding, reason) for finding, reason in reasons if reason))


def mend_and_write(src: Path, report: Report, base: Path | None, writing: Writing) -> Path | None:
    """Mend the findings of `report` in one write, or show its plan; say what is not mended, and why.

    Returns the folder that was written, None where nothing was. Raises UnreadableCheckpoint where `src` contradicts
    itself so that no operation can start from it, Refused where it does not descend from `base`.
    """
    origin, source = open_checkpoint(src), open_checkpoint(base) if base else None
    differences = compared(origin, source, writing.output) if source and _needs_comparison(report.findings) else []
    mending = mend(report.findings, origin, source, differences)
    writing.output.line()
    for finding, why in mending.left:
        writing.output.line(f"not mended: {finding.rule} {brief_place(finding)}: {why}")
    for folded in fold((one.name, one.detail) for one in differences if one.kind == "unexplained"):
        writing.output.line(f"not put back: {folded.pattern}: {folded.state}; ckpt fixup --restore or --keep decides")
    if not mending.mended:
        writing.output.line("nothing was written: no finding has an operation here that mends it")
        return None
    problems = lineage_problems(origin, source) if source else []
    carry_out(mending.draft.refusing(problems), writing, base=source)
    return None if writing.dry_run else writing.target or src


def _needs_comparison(findings: Iterable[Finding]) -> bool:
    """Must dense tensors be compared with the base's to know what to put back?"""
    return any(operation_for(finding) == "restore-dense" for finding in findings)


def _operations(base: Checkpoint | None, differences: Sequence[Difference]) -> Mapping[str, Operation]:
    found: dict[str, Operation] = {"ignore": derive, "target-head": _target_head, "rewrite": _rewrite}
    if base is not None:
        explained = [difference for difference in differences if difference.kind != "unexplained"]
        found["graft-mtp"] = lambda draft: graft_mtp(draft, base)
        found["restore-dense"] = lambda draft: restore_dense(draft, base, explained)
        found["restore-files"] = lambda draft: restore_files(draft, base)
    return found


def _target_head(draft: Draft) -> Draft:
    """Every other target that means the head gives way to the one that all engines resolve to it."""
    config = current(draft)
    groups = config.get("config_groups") if config else None
    if config is None or not isinstance(groups, dict):
        return draft.refusing([Problem("not-quantized", "no config groups")])
    edited = {name: _retargeted(group) for name, group in groups.items()}
    return with_quantization(draft, {**config, "config_groups": edited}).noting(
        "target-head", HEAD_TARGET, {"target": HEAD_TARGET}
    )


def _retargeted(group: object) -> object:
    if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
        return group
    targets = [HEAD_TARGET if _means_head(target) else target for target in group["targets"]]
    return {**group, "targets": list(dict.fromkeys(targets))}


def _means_head(target: object) -> bool:
    if not isinstance(target, str) or target == LINEAR or pattern_problems([target]):
        return False
    return matches(target, HEAD) and not matches(target, "model.layers.0.mlp.down_proj")


def _rewrite(draft: Draft) -> Draft:
    """Nothing but a new index, which every write makes."""
    return draft.noting("rewrite", "index and shards made to agree")


def _refusal(problems: Sequence[Problem]) -> str:
    return "; ".join(str(replace(problem, remedy="")) for problem in problems)


def _why(finding: Finding, why: Mapping[str, str]) -> str:
    """Why the finding is not mended; empty where it is."""
    name = operation_for(finding)
    if name:
        return why[name]
    return "no operation here mends it" + (f". {finding.remedy}" if finding.remedy else "")
