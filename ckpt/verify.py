"""`ckpt verify`: the rules, the schemas, the engines; an exit code for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckpt.options import base_option, examples, source_argument

if TYPE_CHECKING:
    from verify.case import Progress

ERRORS_FOUND = 1


@click.command(
    epilog=examples(
        "ckpt verify EXPORT                                # headers and config, in seconds",
        "ckpt verify EXPORT --base BASE                    # every tensor against the base",
        "ckpt verify EXPORT --engine vllm@0.24 --tp 4",
        "ckpt verify EXPORT --schema experts-int4-g32 --format json",
    )
)
@source_argument
@base_option(required=False)
@click.option("--schema", help="A profile's name, or a JSON Schema file for the layout document.")
@click.option("--engine", "engines", multiple=True, metavar="NAME[@VERSION]", help="Judge for this engine; repeatable.")
@click.option("--tp", type=click.IntRange(1, 1024), help="Judge for this many tensor-parallel ranks.")
@click.option(
    "--level",
    type=click.Choice(["headers", "sample", "full"]),
    help="How much to read (default: headers, or full where a base is given).",
)
@click.option(
    "--only", multiple=True, metavar="RULE", help="Run these rules alone: F07, or F for all of F; repeatable."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="How to print the report.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--strict", is_flag=True, help="Let warnings fail, too.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing; the exit code says it all.")
def command(src: Path, form: str, as_json: bool, strict: bool, quiet: bool, **options: Any) -> None:
    """Prove SRC against rules, schemas, engines and its base.

    Exits with 0 where nothing stands against it, with 1 where an error was found (with --strict, a warning), with 3
    where it cannot be read.
    """
    from verify import verify
    from verify.case import ENGINES

    options["engines"] = options["engines"] or ENGINES
    options["only"] = options["only"] or None
    options["level"] = options["level"] or ("full" if options["base"] else "headers")
    as_json = as_json or form == "json"
    with watched(quiet or as_json or options["level"] == "headers") as progress:
        report = verify(src, progress=progress, **options)
    if as_json and not quiet:
        print(json.dumps(report.document(), indent=2))
    elif not quiet:
        from rich.console import Console

        from verify.report import print_report

        print_report(report, Console())
    if not report.ok(strict=strict):
        raise click.exceptions.Exit(ERRORS_FOUND)


@contextmanager
def watched(hidden: bool) -> Iterator[Progress]:
    """What content rules report their progress to: a bar on stderr, where that is a terminal."""
    from verify.case import silent

    if hidden or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield advance
