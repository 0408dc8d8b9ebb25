"""`ckpt gptq`: a calibrated build from its recipe, by llm-compressor."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint import (
    Checkpoint,
    CkptError,
    Draft,
    Place,
    Refused,
    apply_plan,
    escape,
    open_checkpoint,
    plan_for,
    survey,
)
from checkpoint.manifest import Provenance
from ckpt.commandline import typed
from ckpt.options import FOLDER, PLACE, examples, output_from, output_options
from ckpt.output import Output

if TYPE_CHECKING:
    from surgery.gptq import Handover
    from verify import Report

EXAMPLES = examples(
    "ckpt gptq body-int4-g128-gptq BASE --dry-run",
    "ckpt gptq my-build.yaml BASE --out EXPORT --compare-rtn",
    "ckpt gptq my-build.yaml BASE --out EXPORT --python /opt/llmcompressor/bin/python",
    "ckpt gptq my-build.yaml BASE --compare-existing EXPORT",
)

FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@dataclass(frozen=True)
class Run:
    """What was asked for, but where it goes."""

    build: Handover
    python: Path
    comparing: bool
    fallbacks_allowed: bool
    keep: bool
    output: Output

    @property
    def echo(self) -> bool:
        return not self.output.quiet


@click.command("gptq", epilog=EXAMPLES)
@click.argument("recipe")
@click.argument("src", type=PLACE, required=False)
@click.option("--out", type=FOLDER, help="Folder to create.")
@click.option("--work", type=FOLDER, help="Folder for the raw export until the end succeeds (default: OUT.gptq).")
@click.option("--python", type=FILE, help="Python that has llm-compressor (default: the one that runs this).")
@click.option("--dry-run", is_flag=True, help="Print what would be done and the Python that does the same.")
@click.option("--compare-rtn", is_flag=True, help="Compare with round-to-nearest on the sequences held back.")
@click.option("--compare-existing", type=FOLDER, help="Compare this export alone; calibrate nothing.")
@click.option("--allow-rtn-fallbacks", is_flag=True, help="Accept modules that were rounded to nearest.")
@click.option("--keep-work", is_flag=True, help="Keep the working folder.")
@output_options
def command(recipe: str, src: Place | None, out: Path | None, work: Path | None, **options: Any) -> None:
    """Make the calibrated build that RECIPE describes from the BF16 base SRC.

    llm-compressor runs GPTQ in a process of its own; its export is then mended in one write and verified in full. What
    can be known to go wrong is refused before the model is loaded. A run that fails keeps what it made, and the same
    command goes on from a finished export.
    """
    existing, dry_run = options.pop("compare_existing"), options.pop("dry_run")
    if existing and (out or dry_run):
        raise click.UsageError("--compare-existing writes nothing: neither --out nor --dry-run goes with it")
    if not (existing or out or dry_run):
        raise click.UsageError("give --out DIR, --dry-run for the plan alone, or --compare-existing DIR")
    run = _run(recipe, src, existing is not None, options)
    work = work or (out and out.with_name(f"{out.name}.gptq"))
    _check(run, out, work)
    if existing:
        _compare(run, existing)
    elif out and work and not dry_run:
        _carry_out(run, out, work)
    else:
        _show(run)


def _run(recipe: str, src: Place | None, comparing: bool, options: dict[str, Any]) -> Run:
    from surgery import load_recipe
    from surgery.gptq import handover

    found = load_recipe(recipe)
    if found.gptq is None:
        raise click.UsageError(f"{found.name} is not calibrated; give it to ckpt run")
    base = src or found.base
    if base is None:
        raise click.UsageError(f"{found.name} names no base; give one behind it")
    build = handover(found, open_checkpoint(base))
    python = (options.pop("python") or Path(sys.executable)).absolute()
    allowed = options.pop("allow_rtn_fallbacks") or build.settings.allow_rtn_fallbacks
    comparing = options.pop("compare_rtn") or comparing
    return Run(build, python, comparing, allowed, options.pop("keep_work"), output_from(options))


def _check(run: Run, out: Path | None, work: Path | None) -> None:
    """Raise Refused with all that would go wrong."""
    from surgery.gptq import preflight, probe

    problems = []
    try:
        found = probe(run.python, run.build.job.model_class)
    except Refused as refusal:
        found, problems = None, list(refusal.problems)
    problems += preflight(run.build, found, out, work, comparing=run.comparing)
    if problems:
        raise Refused(problems)
    for advice in run.build.advice:
        run.output.hint(f"note: {advice}")
    if found:
        versions = ", ".join(f"{name} {version}" for name, version in found.packages.items())
        run.output.line(f"{found.executable}: {versions}; {found.accelerator or 'no accelerator'}")


def _show(run: Run) -> None:
    from ckpt.gptq_words import document, plan_lines

    run.output.result(document(run.build))
    for line in plan_lines(run.build):
        run.output.line(line)


def _carry_out(run: Run, out: Path, work: Path) -> None:
    """Calibrate, mend, write, verify. Exits with 1 where what was written has an error."""
    from surgery.gptq import clear

    with _kept(run, out, work):
        export, result = _calibrated(run, work)
        draft = _mended(run, export, result)
        provenance = Provenance(typed(), run.build.recipe.record)
        written = apply_plan(plan_for(draft, out), out, provenance=provenance)
    for step in draft.steps:
        run.output.line(f"{step.operation}: {step.summary}")
    try:
        report = _verified(run, out, export)
        statistics = _told(run, out, work, result)
    except KeyboardInterrupt:
        print(f"\nckpt: interrupted; {escape(str(out))} is written, and whole", file=sys.stderr)
        raise click.exceptions.Exit(130) from None
    said = {"written": str(out), "sha256": written.sha256, "statistics": str(_beside(out))}
    run.output.result({**said, "gptq": statistics, "verify": report.document()})
    if not report.ok():
        run.output.hint(f"the raw export is kept in {work}")
        raise click.exceptions.Exit(1)
    if not run.keep:
        clear(work)


def _told(run: Run, out: Path, work: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Write beside the result what was recorded, and again with the comparison, which may yet fail; say it."""
    from ckpt.gptq_words import run_lines
    from surgery.gptq import statistics

    document = statistics(run.build, result, None)
    _write(document, _beside(out))
    if run.comparing:
        document = statistics(run.build, result, _comparison(run, out, work))
        _write(document, _beside(out))
    for line in run_lines(document):
        run.output.line(line)
    run.output.line(f"wrote {out}, and {_beside(out).name} beside it: what was recorded of every module")
    return document


def _beside(out: Path) -> Path:
    """Where the record goes: not into what is published."""
    return out.with_name(f"{out.name}.gptq.json")


def _write(document: dict[str, Any], path: Path) -> None:
    from checkpoint.wholefile import write_whole

    write_whole(f"{json.dumps(document, indent=1)}\n".encode(), path, "record-unwritable")


def _calibrated(run: Run, work: Path) -> tuple[Checkpoint, Mapping[str, Any]]:
    """The raw export and its record. Raises HandOffFailed where modules were not calibrated."""
    from surgery.gptq import HandOffFailed, calibrated, result_problems

    export, result = calibrated(run.build.job, work, run.python, echo=run.echo)
    problems = list(result_problems(run.build, result["modules"], fallbacks_allowed=run.fallbacks_allowed))
    if problems:
        raise HandOffFailed(problems, "the export is not what was asked for, and is kept")
    return export, result


def _mended(run: Run, export: Checkpoint, result: Mapping[str, Any]) -> Draft:
    from ckpt.comparing import compared
    from surgery.gptq import mended, noted

    differences = compared(export, run.build.base, run.output)
    return mended(run.build, noted(run.build, export, result), differences)


def _verified(run: Run, out: Path, export: Checkpoint) -> Report:
    """Judge what was written by all rules, the contents in full, and the recipe's profile."""
    from ckpt.showing import watched
    from verify import verify

    with watched(run.output.quiet or run.output.as_json) as progress:
        report = verify(
            survey(out, known=export), base=run.build.base, schema=run.build.recipe.profile, level="full",
            progress=progress,
        )  # fmt: skip
    for line in report.lines():
        run.output.line(line)
    return report


def _comparison(run: Run, export: Path, work: Path | None = None) -> Mapping[str, Any]:
    from surgery.gptq import compared_with_rtn

    return compared_with_rtn(run.build.job, export, run.python, echo=run.echo, work=work)


def _compare(run: Run, existing: Path) -> None:
    from ckpt.gptq_words import comparison_lines
    from surgery.gptq import compared

    open_checkpoint(existing)
    found = compared(_comparison(run, existing))
    run.output.result(found)
    for line in comparison_lines(found):
        run.output.line(line)


@contextmanager
def _kept(run: Run, out: Path, work: Path) -> Iterator[None]:
    """Say, when the run fails, what is kept and how to go on from it."""
    from surgery.gptq import is_finished

    try:
        yield
    except (CkptError, KeyboardInterrupt):
        if is_finished(run.build.job, work):
            head = " --int8-head" if run.build.recipe.head else ""
            mending = f"ckpt fixup {work / 'export'} --base {run.build.base.root}{head} --out {out}"
            run.output.hint(
                f"the raw export is kept: the same command goes on from it, and `{mending}` mends it by hand"
            )
        elif work.exists():
            run.output.hint(f"{work} is kept: its log says how far the run came; the same command starts it again")
        raise
