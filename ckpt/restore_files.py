"""`ckpt restore-files`: side files and config.json as upstream wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ckpt.options import any_lineage_option, base_option, examples, source_argument, writing_from, writing_options
from ckpt.writing import carry_out


@click.command("restore-files", epilog=examples("ckpt restore-files EXPORT --base BASE --in-place"))
@source_argument
@base_option(required=True)
@any_lineage_option
@writing_options
def command(src: Path, base: Path, any_lineage: bool, **options: Any) -> None:
    """Put the base's side files into SRC verbatim, and its config.json with SRC's quantization_config in it.

    Tokenizer and processor files that only SRC has are removed, since loaders would prefer or merge them. A README.md
    and .gitattributes of SRC's own stay.
    """
    writing = writing_from(options)
    from checkpoint import Draft, open_checkpoint
    from surgery import lineage_problems, restore_files

    origin, source = open_checkpoint(src), open_checkpoint(base)
    draft = restore_files(Draft.of(origin), source)
    if not any_lineage:
        draft = draft.refusing(lineage_problems(origin, source))
    carry_out(draft, writing, base=source)
