"""`ckpt graft-mtp`: the multi-token-prediction head, back from the base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ckpt.options import any_lineage_option, base_option, examples, source_argument, writing_from, writing_options
from ckpt.writing import carry_out

EXAMPLES = examples(
    "ckpt graft-mtp EXPORT --base BASE --out EXPORT-MTP",
    "ckpt graft-mtp EXPORT --base BASE --in-place",
    "ckpt graft-mtp EXPORT --base BASE --dry-run",
)


@click.command("graft-mtp", epilog=EXAMPLES)
@source_argument
@base_option(required=True)
@any_lineage_option
@writing_options
def command(src: Path, base: Path, any_lineage: bool, **options: Any) -> None:
    """Put the MTP head of the base into SRC, byte for byte, and make index, config and ignore list agree.

    What SRC has of a head is dropped first. Refused where the base has none, where it contradicts its config, or where
    SRC descends from something else.
    """
    writing = writing_from(options)
    from checkpoint import Draft, open_checkpoint
    from surgery import graft_mtp, lineage_problems

    origin, source = open_checkpoint(src), open_checkpoint(base)
    draft = graft_mtp(Draft.of(origin), source)
    if not any_lineage:
        draft = draft.refusing(lineage_problems(origin, source))
    carry_out(draft, writing, base=source)
