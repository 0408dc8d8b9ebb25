"""`ckpt calibrate`: the texts of a recipe as sequences of token ids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckpt.options import FOLDER, examples, output_from, output_options
from ckpt.output import Output, table
from ckpt.text import plural

if TYPE_CHECKING:
    from surgery.calibration import CalibrationSet, Report, Split

SHOWN_TOKENS = 120
SHOWN_ABSENT = 12
EXAMPLES = examples(
    "ckpt calibrate recipe.yaml --model BASE --dry-run --show 2",
    "ckpt calibrate recipe.yaml --model BASE --out calibration.safetensors",
)

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("calibrate", epilog=EXAMPLES)
@click.argument("recipe")
@click.option("--model", type=FOLDER, required=True, help="Folder with the tokenizer and chat template.")
@click.option("--out", type=FILE, help="File to create: token ids, with the recipe and all hashes, as safetensors.")
@click.option("--dry-run", is_flag=True, help="Print the report; write nothing.")
@click.option("--show", type=click.IntRange(0), default=0, metavar="N", help="Print how the first N sequences begin.")
@output_options
def command(recipe: str, model: Path, out: Path | None, dry_run: bool, show: int, **options: Any) -> None:
    """Make the calibration set that the section `calibration` of RECIPE, a file or a name, describes.

    Conversations are rendered by the model's own chat template and joined to sequences; each source has its share of
    the tokens. The same texts, tokenizer and seed give the same set. Text is never repeated: too little is refused.
    """
    if out is None and not dry_run:
        raise click.UsageError("give --out FILE, or --dry-run for the report alone")
    output = output_from(options)
    from surgery.calibration import build_calibration, calibration_of, read_recipe, recipe_path, write_set

    path = recipe_path(recipe)
    document = read_recipe(path)
    if "calibration" not in document:
        raise click.UsageError(f"{recipe} has no section `calibration:`")
    built = build_calibration(calibration_of(document["calibration"], path), model)
    if out is not None and not dry_run:
        write_set(built, out)
    shown = _beginnings(built, model, show)
    record = {"sha256": built.sha256, "report": built.report.document(), "record": dict(built.record)}
    output.result({**record, "shown": shown, "written": None if dry_run or out is None else str(out)})
    _print(built.report, output)
    for number, text in enumerate(shown, 1):
        output.line(f"sequence {number}: {text!r}")
    output.line(f"sha256 of the ids: {built.sha256}")
    if out is not None and not dry_run:
        output.line(f"written to {out}")


def _beginnings(built: CalibrationSet, model: Path, count: int) -> list[str]:
    """The first tokens of the first `count` sequences, as text."""
    from surgery.calibration.rendering import load_tokenizer

    tokenizer = load_tokenizer(model) if count else None
    return [str(tokenizer.decode(ids[:SHOWN_TOKENS])) for ids in built.sequences[:count]] if tokenizer else []


def _print(report: Report, output: Output) -> None:
    """The report for people."""
    output.line(f"calibration: {_sizes(report.calibration)}")
    if report.held_back.sequences:
        output.line(f"held back: {_sizes(report.held_back)}, of other conversations")
    heads = ("source", "system", "asked", "reached", "tokens", "used", "with system", "in file", "duplicates")
    rows = [
        (
            share.source,
            share.system,
            f"{share.asked:.1f} %",
            f"{share.reached:.1f} %",
            f"{share.tokens:,}",
            f"{share.conversations:,}",
            f"{share.with_system:,}",
            f"{found.conversations:,}",
            f"{found.duplicates:,}",
        )
        for share, found in zip(report.calibration.shares, report.sources, strict=True)
    ]
    for line in table([heads, *rows], right=frozenset(range(2, len(heads)))):
        output.line(line)
    for line in _notes(report):
        output.line(line)


def _sizes(split: Split) -> str:
    cut = f"; {plural(split.cut, 'sequence')} cut, {plural(split.cut_tokens, 'token')} left out" if split.cut else ""
    return (
        f"{plural(split.sequences, 'sequence')}, {plural(split.tokens, 'token')} "
        f"({split.shortest:,} to {split.longest:,} each), {plural(split.conversations, 'conversation')}{cut}"
    )


def _notes(report: Report) -> list[str]:
    split = report.calibration
    scripts = ", ".join(f"{name} {count:,}" for name, count in split.scripts.items())
    present = ", ".join(f"{token} {count:,}" for token, count in split.added_tokens.items() if count)
    lines = [
        f"letters by script: {scripts or 'none'}",
        f"vocabulary: {split.distinct_tokens:,} of {report.vocabulary:,} tokens occur",
        f"added tokens that occur: {present or 'none'}",
    ]
    if absent := split.absent_tokens:
        more = f" and {len(absent) - SHOWN_ABSENT} more" if len(absent) > SHOWN_ABSENT else ""
        lines.append(f"added tokens that never occur: {', '.join(absent[:SHOWN_ABSENT])}{more}")
    short = [f"{found.source}" for found in report.sources if found.exhausted]
    if short:
        lines.append(f"exhausted, so other sources filled up: {', '.join(short)}; no text was repeated")
    if report.unread_arguments:
        lines.append(f"the chat template does not know: {', '.join(report.unread_arguments)}")
    return lines
