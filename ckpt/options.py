"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from ckpt.output import Output

F = TypeVar("F", bound=Callable[..., Any])

FOLDER = click.Path(path_type=Path, file_okay=False)


@dataclass(frozen=True)
class Writing:
    """How a command that writes was asked to write. `target` is None for in place."""

    target: Path | None
    dry_run: bool
    verify: bool
    workers: int | None
    output: Output


def source_argument(command: F) -> F:
    return click.argument("src", type=FOLDER)(command)


def base_option(*, required: bool) -> Callable[[F], F]:
    text = "The unquantized original that SRC descends from."
    return click.option("--base", type=FOLDER, required=required, help=text)


def any_lineage_option(command: F) -> F:
    text = "Go on though SRC does not seem to descend from the base."
    return click.option("--any-lineage", is_flag=True, help=text)(command)


def output_options(command: F) -> F:
    """`--json` and `--quiet`, handed to the command as `output`."""
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)
    return click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")(command)


def writing_options(command: F) -> F:
    """Everything that a command which writes takes; `writing_from` reads it."""
    options = (
        click.option("--out", type=FOLDER, help="Folder to create. Untouched shards share storage with SRC."),
        click.option("--in-place", is_flag=True, help="Replace SRC itself, in one step, when all is written."),
        click.option("--dry-run", is_flag=True, help="Print the plan; write nothing."),
        click.option("--no-verify", is_flag=True, help="Do not verify what was written."),
        click.option("--workers", type=click.IntRange(1, 256), help="Compute threads (default: the cores, at most 8)."),
    )
    for option in reversed(options):
        command = option(command)
    return output_options(command)


def writing_from(options: dict[str, Any]) -> Writing:
    """Take the writing options out of a command's keyword arguments. Raises click.UsageError."""
    out, in_place = options.pop("out"), options.pop("in_place")
    dry_run, output = options.pop("dry_run"), output_from(options)
    if out and in_place:
        raise click.UsageError("--out and --in-place exclude each other")
    if not out and not in_place and not dry_run:
        raise click.UsageError("give --out DIR for a new folder, --in-place, or --dry-run for the plan alone")
    return Writing(out, dry_run, not options.pop("no_verify"), options.pop("workers"), output)


def output_from(options: dict[str, Any]) -> Output:
    return Output(as_json=options.pop("as_json"), quiet=options.pop("quiet"))


def group_size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Callback: a positive number, or `channel` as 0, so that None still means "not given"."""
    if value is None:
        return None
    if value == "channel":
        return 0
    if value.isdecimal() and int(value) > 0:
        return int(value)
    raise click.BadParameter("a positive number of columns, or channel")


def require_torch(command: str) -> None:
    """Raise MissingExtra where the arithmetic's library is not installed."""
    from importlib.util import find_spec

    from checkpoint import MissingExtra, Problem

    if find_spec("torch") is None:
        remedy = 'pip install "ckpt-surgery[torch]"'
        raise MissingExtra(Problem("extra-missing", f"{command} needs the package torch", remedy=remedy))


def examples(*lines: str) -> str:
    """An epilog that click prints as it stands."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
