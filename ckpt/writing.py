"""The end of every command that writes: plan, show or apply, verify, report."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint import (
    Checkpoint,
    Draft,
    Plan,
    Problem,
    Refused,
    apply_plan,
    escape,
    examine,
    plan_for,
    survey,
)
from checkpoint.manifest import Provenance
from ckpt.commandline import typed
from ckpt.options import Writing
from ckpt.planning import document, show_plan
from ckpt.text import plural, size

if TYPE_CHECKING:
    from verify.registry import Level


def carry_out(
    draft: Draft,
    writing: Writing,
    *,
    base: Checkpoint | None = None,
    profile: str | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> None:
    """Plan `draft` and show the plan, or write it, verify what was written and say so. Exits with 1 where the result
    has an error that its source had not. `profile` is what its layout must satisfy, `recipe` is for the manifest."""
    if writing.device != "cpu":
        from surgery import packed_by, packer_for

        packer = packer_for(writing.device)
        draft = packed_by(draft, packer)
        if packer.note:
            writing.output.line(packer.note)
    try:
        plan = plan_for(draft, writing.target)
    except Refused as refusal:
        raise Refused([*refusal.problems, *_in_the_weights(draft, writing)]) from refusal
    if writing.dry_run:
        show_plan(plan, writing.output, plan.threads(writing.workers, writing.memory))
        return
    written: list[Path] = []
    try:
        verdict = _written_and_judged(plan, writing, base, profile, Provenance(typed(), recipe), written)
    except KeyboardInterrupt:
        if written or (writing.target and writing.target.exists()):  # it did not exist before
            whole = escape(str(written[0] if written else writing.target))
            print(f"\nckpt: interrupted; {whole} is written, and whole", file=sys.stderr)
            raise click.exceptions.Exit(130) from None
        raise
    if verdict.get("new_errors"):
        raise click.exceptions.Exit(1)


def _written_and_judged(
    plan: Plan,
    writing: Writing,
    base: Checkpoint | None,
    profile: str | None,
    provenance: Provenance,
    written: list[Path],
) -> dict[str, Any]:
    """Write, tell, verify; the verdict. `written` takes the folder as soon as it is whole."""
    started = time.monotonic()
    with writing.output.progress("writing", plan.bytes_read) as advance:
        result = apply_plan(
            plan,
            writing.target,
            workers=writing.workers,
            memory=writing.memory,
            hashing=writing.hashing,
            cache=writing.cache,
            progress=advance,
            provenance=provenance,
        )
        written.append(result.root)
    seconds = time.monotonic() - started
    for step in plan.draft.steps:
        writing.output.line(f"{step.operation}: {step.summary}")
    linked = sum(shard.action == "linked" for shard in plan.shards)
    writing.output.line(
        f"wrote {result.root}: {plural(len(plan.shards), 'shard')}, {linked} of them linked; "
        f"read {size(plan.bytes_read)}, wrote {size(plan.bytes_written)} in {seconds:.1f} s"
    )
    verdict = _verify(plan, result.root, base, profile, writing) if writing.verify else {}
    threads = plan.threads(writing.workers, writing.memory)
    said = {"written": str(result.root), "seconds": round(seconds, 3), "sha256": result.sha256}
    writing.output.result({**said, **document(plan, threads), **verdict})
    return verdict


def _in_the_weights(draft: Draft, writing: Writing) -> list[Problem]:
    """What else is wrong, in the data itself, so that one failed run tells all. A dry run reads none."""
    if writing.dry_run or not draft.unrun:
        return []
    total = sum(work.source.nbytes for work in draft.unrun)
    with writing.output.progress("looking for NaN and Inf", total) as advance:
        return examine(draft, workers=writing.workers, memory=writing.memory, progress=advance)


def _verify(
    plan: Plan, written: Path, base: Checkpoint | None, profile: str | None, writing: Writing
) -> dict[str, Any]:
    """Judge what was written: headers, config, and against a base a sample of the contents, if any are new; not where
    it would have to be downloaded for that. Errors that the source had too are told, not counted as new."""
    from verify import verify

    origin = plan.draft.origin
    here = base is not None and isinstance(base.root, Path) and isinstance(origin.root, Path)
    level: Level = "sample" if here and plan.bytes_written else "headers"
    report = verify(survey(written, known=origin), base=base, schema=profile, level=level)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    known = {(f.rule, f.place) for f in verify(origin, base=base, level=level).findings} if errors else set()
    new = [finding for finding in errors if (finding.rule, finding.place) not in known]
    for line in report.lines():
        writing.output.line(line)
    return {"verify": report.document(), "new_errors": len(new)}
