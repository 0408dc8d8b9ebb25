"""Arguments and options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from checkpoint import Address, Place, UnreadableCheckpoint, default_memory, default_workers
from checkpoint.places import SCHEME
from ckpt.output import Output

F = TypeVar("F", bound=Callable[..., Any])

FOLDER = click.Path(path_type=Path, file_okay=False)


def place(value: str) -> Place:
    """The type of an argument that is a folder, or an address on the Hub."""
    if value.startswith(SCHEME):
        try:
            return Address.parse(value)
        except UnreadableCheckpoint as error:
            raise click.BadParameter(str(error)) from error
    folder: Path = FOLDER.convert(value, None, None)
    return folder


PLACE: Callable[[str], Place] = place


@dataclass(frozen=True)
class Writing:
    """How a command that writes was asked to write. `target` is None for in place."""

    target: Path | None
    dry_run: bool
    verify: bool
    output: Output
    workers: int = field(default_factory=default_workers)
    memory: int = field(default_factory=default_memory)
    hashing: bool = True
    device: str = "cpu"
    cache: int = 0


def source_argument(command: F) -> F:
    return click.argument("src", type=PLACE)(command)


def base_option(*, required: bool) -> Callable[[F], F]:
    text = "The unquantized original that SRC descends from: a folder, or hf://owner/name[@revision]."
    return click.option("--base", type=PLACE, required=required, help=text)


def any_lineage_option(command: F) -> F:
    text = "Go on though SRC does not seem to descend from the base."
    return click.option("--any-lineage", is_flag=True, help=text)(command)


def output_options(command: F) -> F:
    """`--json` and `--quiet`, handed to the command as `output`."""
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)
    return click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")(command)


def memory_option(command: F) -> F:
    text = "Budget of buffers, as 512M or 2G (default: RAM / 4, at most 1G)."
    return click.option("--memory", callback=_bytes, help=text)(command)


def writing_options(command: F) -> F:
    """Everything that a command which writes takes; `writing_from` reads it."""
    options = (
        click.option("--out", type=FOLDER, help="Folder to create. Untouched shards share storage with SRC."),
        click.option("--in-place", is_flag=True, help="Replace SRC itself, in one step, when all is written."),
        click.option("--dry-run", is_flag=True, help="Print the plan; write nothing."),
        click.option("--no-verify", is_flag=True, help="Do not verify what was written."),
        click.option("--workers", type=click.IntRange(1, 256), help="Compute threads (default: the cores, at most 8)."),
        click.option("--no-hash", is_flag=True, help="Do not compute the SHA-256 of what is written (see --json)."),
        memory_option,
        click.option(
            "--cache-bytes",
            callback=_bytes,
            help="Disk for whole shards of hf:// sources, as 20G; their hashes are checked (default: read by range).",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return output_options(command)


def device_option(command: F) -> F:
    """`--device`, for commands that compute; `writing_from` reads it."""
    text = "Where to compute: cpu, cuda or cuda:N. The bits are the same."
    return click.option("--device", callback=device_name, default="cpu", show_default=True, help=text)(command)


def writing_from(options: dict[str, Any]) -> Writing:
    """Take the writing options out of a command's keyword arguments. Raises click.UsageError."""
    out, in_place = options.pop("out"), options.pop("in_place")
    dry_run, output = options.pop("dry_run"), output_from(options)
    if out and in_place:
        raise click.UsageError("--out and --in-place exclude each other")
    if not out and not in_place and not dry_run:
        raise click.UsageError("give --out DIR for a new folder, --in-place, or --dry-run for the plan alone")
    workers, memory = options.pop("workers") or default_workers(), options.pop("memory") or default_memory()
    hashing, device = not options.pop("no_hash"), options.pop("device", "cpu")
    cache = options.pop("cache_bytes") or 0
    return Writing(out, dry_run, not options.pop("no_verify"), output, workers, memory, hashing, device, cache)


def device_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Callback: the name of a device."""
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", value):
        raise click.BadParameter("cpu, cuda or cuda:N")
    return value


def _bytes(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Callback: a number of bytes, or of binary multiples of them."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)(i?b)?", value.strip(), re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise click.BadParameter("bytes, or a number with K, M, G or T, as 512M")
    return int(match[1]) << 10 * " kmgt".index(match[2].lower() or " ")


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
    from checkpoint.errors import require

    require(command, "torch", extra="torch")


def examples(*lines: str) -> str:
    """An epilog that click prints as it stands."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
