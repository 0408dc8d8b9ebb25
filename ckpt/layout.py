"""`ckpt layout`: the layout document."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ckpt.options import examples, source_argument


@click.command("layout", epilog=examples("ckpt layout EXPORT > layout.json", "ckpt layout EXPORT --hashes"))
@source_argument
@click.option("--hashes", is_flag=True, help="Add the sha256 of every side file.")
def command(src: Path, hashes: bool) -> None:
    """Print what is stored where, folded to what a person can read and a JSON Schema can judge.

    Modules that differ only in layer and expert numbers share an entry. `ckpt verify --schema FILE` judges this
    document by a schema of your own.
    """
    from checkpoint import open_checkpoint
    from checkpoint.layout import layout

    print(json.dumps(layout(open_checkpoint(src), hashes=hashes), indent=2))
