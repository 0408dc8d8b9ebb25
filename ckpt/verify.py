"""`ckpt verify`: the rules, the schemas, the engines; an exit code for machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckpt.options import FOLDER, PLACE, base_option, examples
from ckpt.showing import Showing, print_explanation, show, watched

if TYPE_CHECKING:
    from verify import Report
    from verify.reports import Form

ERRORS_FOUND = 1
FORMATS = ("text", "json", "sarif", "junit", "html")

EXAMPLES = examples(
    "ckpt verify EXPORT                                # headers and config, in seconds",
    "ckpt verify EXPORT --base BASE                    # every tensor against the base",
    "ckpt verify EXPORT --base BASE --fix --out FIXED  # and mend what can be mended",
    "ckpt verify EXPORT --engine vllm@0.24 --tp 4",
    "ckpt verify EXPORT --schema experts-int4-g32 --format json",
    "ckpt verify EXPORT --base BASE --format html --output report.html",
    "ckpt verify --explain M01",
)


@click.command("verify", epilog=EXAMPLES)
@click.argument("src", type=PLACE, required=False)
@base_option(required=False)
@click.option("--schema", help="A profile's name, or a JSON Schema file for the layout document.")
@click.option("--engine", "engines", multiple=True, metavar="NAME[@VERSION]", help="Judge for this engine; repeatable.")
@click.option("--tp", type=click.IntRange(1, 1024), help="Judge for this many tensor-parallel ranks.")
@click.option(
    "--level",
    type=click.Choice(["headers", "sample", "full"]),
    help="How much to read (default: headers, or full where a base is given).",
)
@click.option("--only", multiple=True, metavar="RULE", help="Run these rules alone: F07, or F for all; repeatable.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", help="How to write the report.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write the report to.")
@click.option("--measure", is_flag=True, help="Add the errors of packed weights to the report (html has them anyway).")
@click.option("--workers", type=click.IntRange(1, 256), help="Threads that read (default: the cores, at most 8).")
@click.option("--verbose", "-v", is_flag=True, help="Everything about each finding.")
@click.option("--strict", is_flag=True, help="Let warnings fail, too.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing; the exit code says it all.")
@click.option(
    "--explain", metavar="RULE", help="Say what a rule is about and what it rests on, or list those of a letter."
)
@click.option("--fix", is_flag=True, help="Plan what mends the findings; write it with --out or --in-place.")
@click.option("--out", type=FOLDER, help="With --fix: folder to create.")
@click.option("--in-place", is_flag=True, help="With --fix: replace SRC itself, in one step, when all is written.")
def command(src: Path | None, explain: str | None, fix: bool, **options: Any) -> None:
    """Prove SRC against rules, schemas, engines and its base.

    Exits with 0 where nothing stands against it, with 1 where an error was found (with --strict, a warning), with 3
    where it cannot be read. With --fix, what stands after mending counts.
    """
    if explain is not None:
        print_explanation(_rules(explain))
        return
    if src is None:
        raise click.UsageError("Missing argument 'SRC'.")
    out, in_place = options.pop("out"), options.pop("in_place")
    _check_use(fix, out, in_place, options["only"])
    showing = _showing(options)
    options["engines"] = options["engines"] or _all_engines()
    options["only"] = options["only"] or None
    options["level"] = options["level"] or ("full" if options["base"] else "headers")
    options["measure"] = options["measure"] or showing.form == "html"
    report = _judged(src, showing.hidden if fix and showing.form != "text" else showing, options)
    if fix and report.findings:
        written = _mended(src, report, showing, options["base"], out, in_place)
        report = _judged(written or src, showing, options) if written or showing.form != "text" else report
    if not report.ok(strict=showing.strict):
        raise click.exceptions.Exit(ERRORS_FOUND)


def _check_use(fix: bool, out: Path | None, in_place: bool, only: Sequence[str]) -> None:
    """Raise click.UsageError for options that contradict each other, or a rule that is none: it would find nothing."""
    if (out or in_place) and not fix:
        raise click.UsageError("--out and --in-place say where --fix writes; a report goes to --output FILE")
    if out and in_place:
        raise click.UsageError("--out and --in-place exclude each other")
    for prefix in only:
        _rules(prefix)


def _rules(prefix: str) -> list[str]:
    """The ids of the rules that begin with `prefix`. Raises click.UsageError where there is none."""
    from verify import RULES, load_rules

    load_rules()
    found = sorted(rule_id for rule_id in RULES if prefix and rule_id.startswith(prefix))
    if not found:
        letters = "".join(sorted({rule_id[0] for rule_id in RULES}))
        raise click.UsageError(f"no rule is or begins with {prefix!r}; their letters are {letters}")
    return found


def _all_engines() -> tuple[str, ...]:
    from verify.case import ENGINES

    return ENGINES


def _showing(options: dict[str, Any]) -> Showing:
    """Take what concerns the report's form out of `options`."""
    stated: Form = options.pop("form")
    form: Form = "json" if options.pop("as_json") else stated
    names = ("output", "verbose", "strict", "quiet")
    return Showing(form, **{name: options.pop(name) for name in names})


def _judged(src: Path, showing: Showing, options: dict[str, Any]) -> Report:
    """Judge `src` and show the report."""
    from checkpoint import survey
    from verify import verify

    checkpoint = survey(src)
    with watched(not showing.for_people or options["level"] == "headers") as progress:
        report = verify(checkpoint, progress=progress, **options)
    show(report, checkpoint, showing)
    return report


def _mended(
    src: Path, report: Report, showing: Showing, base: Path | None, out: Path | None, in_place: bool
) -> Path | None:
    """Plan or write what mends the findings; the folder to judge again, None where nothing was written."""
    from ckpt.fixing import mend_and_write
    from ckpt.options import Writing
    from ckpt.output import Output

    dry_run = not out and not in_place
    writing = Writing(out, dry_run, verify=False, output=Output(quiet=not showing.for_people))
    return mend_and_write(src, report, base, writing)
