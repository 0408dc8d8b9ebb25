"""`ckpt ignore`: the list of modules that stay dense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ckpt.options import examples, source_argument, writing_from, writing_options
from ckpt.writing import carry_out

ACTIONS = ("show", "add", "remove", "set", "derive")
EXAMPLES = examples(
    "ckpt ignore EXPORT show",
    "ckpt ignore EXPORT derive --in-place",
    "ckpt ignore EXPORT add 're:^mtp.*' 're:.*mtp.*' --in-place",
)


@click.command("ignore", epilog=EXAMPLES)
@source_argument
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("entries", nargs=-1)
@writing_options
def command(src: Path, action: str, entries: tuple[str, ...], **options: Any) -> None:
    """Show or edit the ignore list of SRC's quantization_config; no weights are read or written.

    derive computes the shortest list that every engine reads alike, from what is stored. A list that would ignore a
    packed module, or leave a targeted dense one uncovered, is refused.
    """
    if action in ("add", "remove", "set") and not entries:
        raise click.UsageError(f"{action} needs at least one entry")
    if action in ("show", "derive") and entries:
        raise click.UsageError(f"{action} takes no entries")
    if action == "show":
        _show(src, options)
        return
    writing = writing_from(options)
    from checkpoint import Draft, open_checkpoint
    from surgery import add_ignore, derive, remove_ignore, set_ignore

    draft = Draft.of(open_checkpoint(src))
    edits = {"add": add_ignore, "remove": remove_ignore, "set": set_ignore}
    carry_out(derive(draft) if action == "derive" else edits[action](draft, entries), writing)


def _show(src: Path, options: dict[str, Any]) -> None:
    """Each entry with the number of stored modules it covers."""
    from checkpoint import Draft, Refused, open_checkpoint
    from ckpt.options import output_from
    from ckpt.output import table
    from surgery.ignore import coverage
    from surgery.quantization_config import unsupported

    draft, output = Draft.of(open_checkpoint(src)), output_from(options)
    problems = unsupported(draft)
    if problems:
        raise Refused(problems)
    covered = coverage(draft)
    output.result({"ignore": [{"entry": entry, "modules": count} for entry, count in covered.items()]})
    rows = [(f"{count:,}", entry) for entry, count in covered.items()]
    for line in table([("modules", "entry"), *rows], right=frozenset({0})):
        output.line(line)
