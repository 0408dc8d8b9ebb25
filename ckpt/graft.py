"""`ckpt graft`: tensors of another checkpoint, by pattern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ckpt.options import PLACE, examples, source_argument, writing_from, writing_options
from ckpt.writing import carry_out

EXAMPLES = examples(
    "ckpt graft EXPORT --from BASE --tensors 're:.*norm.weight$' --out FIXED",
    "ckpt graft EXPORT --from BASE --tensors 're:model.visual.*' --max-bytes 1000000000 --in-place",
)


@click.command("graft", epilog=EXAMPLES)
@source_argument
@click.option("--from", "donor", type=PLACE, required=True, help="The checkpoint to take from.")
@click.option("--tensors", multiple=True, required=True, help="Tensor name or re:PATTERN. May be repeated.")
@click.option("--max-tensors", type=click.IntRange(1), default=1_000, show_default=True, help="Refuse to take more.")
@click.option(
    "--max-bytes", type=click.IntRange(1), default=4 * 1024**3, show_default=True, help="Refuse to take more."
)
@writing_options
def command(src: Path, donor: Path, tensors: tuple[str, ...], max_tensors: int, max_bytes: int, **options: Any) -> None:
    """Take tensors of another checkpoint into SRC, byte for byte.

    A tensor that SRC has under the same name is replaced where it stands, if the shapes agree; others go to a new
    shard.
    """
    writing = writing_from(options)
    from checkpoint import Draft, open_checkpoint
    from surgery import Bound, graft

    source = open_checkpoint(donor)
    carry_out(graft(Draft.of(open_checkpoint(src)), source, tensors, bound=Bound(max_tensors, max_bytes)), writing)
