"""`ckpt card`: the model card of a checkpoint."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint.interrupts import undisturbed
from checkpoint.places import Address, Place
from checkpoint.recovery import editing
from ckpt.options import FOLDER, base_option, examples, output_from, output_options
from ckpt.output import Output

if TYPE_CHECKING:
    from cards import Card

STALE = 1
STATISTICS = "*.gptq.json"

EXAMPLES = examples(
    "ckpt card EXPORT --base hf://Qwen/Qwen3.6-35B-A3B --repo me/Qwen3.6-35B-A3B-INT4",
    "ckpt card EXPORT            # refresh it after a change",
    "ckpt card EXPORT --check    # in CI: exit 1 if it is stale",
    "ckpt card EXPORT --dry-run  # what would change",
)


def _repository(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Callback: the name of a repository."""
    from cards import REPO

    if value is not None and not re.fullmatch(REPO, value):
        raise click.BadParameter("a repository of the Hub, as owner/name")
    return value


def _one_line(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Callback: words on one line."""
    if value is not None and not (value.strip() and value.isprintable()):
        raise click.BadParameter("printable words on one line")
    return value


@click.command("card", epilog=EXAMPLES)
@click.argument("folder", metavar="DIR", type=FOLDER)
@base_option(required=False)
@click.option("--base-model", metavar="OWNER/NAME", callback=_repository, help="The Hub's name of the base.")
@click.option("--quantized-by", metavar="NAME", callback=_one_line, help="Who quantized it.")
@click.option("--title", callback=_one_line, help="The title of a card that is not there yet.")
@click.option("--repo", metavar="OWNER/NAME", callback=_repository, help="Where it is published: for the commands.")
@click.option("--statistics", type=click.Path(path_type=Path, dir_okay=False), help="OUT.gptq.json of `ckpt gptq`.")
@click.option("--hash/--no-hash", "hashing", default=None, help="Compute SHA-256 of shards that the manifest lacks.")
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if the card is stale.")
@click.option("--stdout", "to_stdout", is_flag=True, help="Print the card; write nothing.")
@click.option("--dry-run", is_flag=True, help="Print what would change; write nothing.")
@output_options
def command(folder: Path, base: Place | None, check: bool, to_stdout: bool, dry_run: bool, **options: Any) -> None:
    """Write or refresh a section of README.md in DIR: what is quantized and why, sizes, engines, commands, hashes.

    The section stands between two comments; all else in the file is kept byte for byte. Keys that the front matter
    lacks are added to it, those that it has win. --repo and --hash are remembered in the first comment.
    """
    output = output_from(options)
    if sum((check, to_stdout, dry_run)) > 1:
        raise click.UsageError("--check, --stdout and --dry-run exclude each other")
    if to_stdout and output.as_json:
        raise click.UsageError("--stdout and --json exclude each other")
    with nullcontext() if check or dry_run or to_stdout else editing(folder):
        card = _made(folder, base, options, output)
        if not check and not dry_run and not to_stdout:
            with undisturbed():  # two files that belong together
                _write(card)
    if to_stdout:
        sys.stdout.buffer.write(card.after.encode())
        return
    _tell(card, check=check, dry_run=dry_run, output=output)
    if check and card.stale:
        raise click.exceptions.Exit(STALE)


def _made(folder: Path, base: Place | None, options: dict[str, Any], output: Output) -> Card:
    from cards import Options, make_card
    from checkpoint.manifest import read_manifest
    from checkpoint.manifest.value import tool

    manifest = read_manifest(folder)
    if isinstance(base, Address) and options["base_model"] is None:
        options["base_model"] = base.repo
    statistics = _statistics(folder, options.pop("statistics"))
    asked = Options(**options, base_card=_base_card(base) if base is not None else None, statistics=statistics)
    total = sum(path.stat().st_size for path in folder.glob("*.safetensors")) if options["hashing"] else 0
    with output.progress("hashing", total) as advance:
        return make_card(
            folder,
            asked,
            manifest=manifest.document if manifest else None,
            version=tool()["version"] or "(run from its sources)",
            progress=advance,
        )


def _write(card: Card) -> None:
    """Put the card in place, and in the manifest, which has the hash of every file.

    The manifest goes first: a run that is cut off between the two leaves a stale card, which the next run writes.
    """
    from checkpoint.manifest import read_manifest

    manifest = read_manifest(card.folder) if card.stale else None
    if manifest:
        manifest.with_file("README.md", card.after.encode()).write(card.folder)
    card.write()


def _base_card(base: Place) -> str:
    """The README.md of the base. Raises UnreadableCheckpoint where it has none."""
    from checkpoint import Problem, UnreadableCheckpoint, open_checkpoint

    path = base / "README.md" if isinstance(base, Path) else open_checkpoint(base).side_files.get("README.md")
    try:
        if path is not None and path.is_file():
            return str(path.read_bytes().decode())
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableCheckpoint(Problem("file-unreadable", str(error), "README.md")) from error
    raise UnreadableCheckpoint(Problem("card-no-base", f"{base} has no README.md to inherit from"))


def _statistics(folder: Path, path: Path | None) -> Mapping[str, Any] | None:
    """The document of `path`, else of the only one in the folder. Raises UnreadableCheckpoint."""
    from checkpoint import Problem, UnreadableCheckpoint
    from checkpoint.document import read_document
    from schemas import validate

    beside = sorted(folder.glob(STATISTICS))
    path = path or (beside[0] if len(beside) == 1 else None)
    if path is None:
        return None
    document = read_document(path).value
    faults = validate(document, "gptq_statistics")
    if faults:
        raise UnreadableCheckpoint(
            Problem("statistics-invalid", fault.message, path.name, fault.path or None) for fault in faults
        )
    return document


def _tell(card: Card, *, check: bool, dry_run: bool, output: Output) -> None:
    written = card.stale and not check and not dry_run
    output.result(_document(card, written))
    if dry_run:
        for line in _difference(card):
            output.line(line)
    state = "written" if written else "stale" if card.stale else "up to date"
    output.line(f"README.md: {state}; {card.model.report.summary()}")
    for key, value in card.metadata.added.items():
        output.line(f"front matter: {key} {'added' if written else 'to be added'}: {_shown(value)}")
    for key, (found, expected) in card.metadata.differing.items():
        output.hint(f"front matter: {key} is kept as {_shown(found)}, though {_shown(expected)} was expected")
    for lack in card.lacking:
        output.hint(f"left out: {lack}")


def _difference(card: Card) -> list[str]:
    from difflib import unified_diff

    before, after = (card.before or "").splitlines(), card.after.splitlines()
    return list(unified_diff(before, after, "README.md", "README.md as it should be", lineterm="", n=1))


def _document(card: Card, written: bool) -> dict[str, Any]:
    return {
        "readme": str(card.folder / "README.md"),
        "stale": card.stale,
        "written": written,
        "section": card.section,
        "front_matter": {
            "added": dict(card.metadata.added),
            "kept": {key: {"found": found, "expected": value} for key, (found, value) in _plain(card).items()},
        },
        "left_out": list(card.lacking),
        "verify": {"counts": dict(card.model.report.counts), "rules": len(card.model.report.rules)},
        "files": [{"name": one.name, "bytes": one.nbytes, "sha256": one.sha256} for one in card.files],
    }


def _plain(card: Card) -> dict[str, tuple[Any, Any]]:
    """What differs, as JSON can hold it: YAML knows dates."""
    return {
        key: (json.loads(json.dumps(found, default=str)), value)
        for key, (found, value) in card.metadata.differing.items()
    }


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
