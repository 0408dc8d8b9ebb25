"""The end of every command that writes: plan, show or apply, verify, report."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint import Checkpoint, Draft, Problem, Refused, apply_plan, default_workers, escape, examine, plan_for
from ckpt.options import Writing
from ckpt.planning import document, show_plan
from ckpt.text import plural, size

if TYPE_CHECKING:
    from verify.registry import Level


def carry_out(draft: Draft, writing: Writing, *, base: Checkpoint | None = None) -> None:
    """Plan `draft` and show the plan, or write it, verify what was written and say so. Exits with 1 where the result
    has an error that its source had not."""
    workers = writing.workers or default_workers()
    try:
        plan = plan_for(draft, writing.target)
    except Refused as refusal:
        raise Refused([*refusal.problems, *_in_the_weights(draft, writing, workers)]) from refusal
    if writing.dry_run:
        show_plan(plan, writing.output, workers)
        return
    started = time.monotonic()
    with writing.output.progress("writing", plan.bytes_read) as advance:
        written = apply_plan(plan, writing.target, workers=workers, progress=advance)
    seconds = time.monotonic() - started
    for step in draft.steps:
        writing.output.line(f"{step.operation}: {step.summary}")
    linked = sum(shard.action == "linked" for shard in plan.shards)
    writing.output.line(
        f"wrote {written}: {plural(len(plan.shards), 'shard')}, {linked} of them linked; "
        f"read {size(plan.bytes_read)}, wrote {size(plan.bytes_written)} in {seconds:.1f} s"
    )
    try:
        verdict = _verify(draft.origin, written, base, writing) if writing.verify else {}
    except KeyboardInterrupt:
        print(f"\nckpt: interrupted while verifying; {escape(str(written))} is written, and whole", file=sys.stderr)
        raise click.exceptions.Exit(130) from None
    writing.output.result({"written": str(written), "seconds": round(seconds, 3), **document(plan, workers), **verdict})
    if verdict.get("new_errors"):
        raise click.exceptions.Exit(1)


def _in_the_weights(draft: Draft, writing: Writing, workers: int) -> list[Problem]:
    """What else is wrong, in the data itself, so that one failed run tells all. A dry run reads none."""
    if writing.dry_run or not draft.unrun:
        return []
    total = sum(work.source.nbytes for work in draft.unrun)
    with writing.output.progress("looking for NaN and Inf", total) as advance:
        return examine(draft, workers=workers, progress=advance)


def _verify(origin: Checkpoint, written: Path, base: Checkpoint | None, writing: Writing) -> dict[str, Any]:
    """Judge what was written: headers, config, and against a base a sample of the contents. Errors that the source had
    too are told, not counted as new."""
    from verify import verify

    level: Level = "sample" if base else "headers"
    report = verify(written, base=base, level=level)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    known = {(f.rule, f.place) for f in verify(origin, base=base, level=level).findings} if errors else set()
    new = [finding for finding in errors if (finding.rule, finding.place) not in known]
    for line in report.lines():
        writing.output.line(line)
    return {"verify": report.document(), "new_errors": len(new)}
