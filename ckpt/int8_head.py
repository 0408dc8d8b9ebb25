"""`ckpt int8-head`: lm_head to INT8 as a further config group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ckpt.options import (
    base_option,
    device_option,
    examples,
    group_size,
    require_torch,
    source_argument,
    writing_from,
    writing_options,
)
from ckpt.writing import carry_out

EXAMPLES = examples(
    "ckpt int8-head EXPORT --out EXPORT-INT8-HEAD",
    "ckpt int8-head EXPORT --base BASE --group-size channel --in-place",
)


@click.command("int8-head", epilog=EXAMPLES)
@source_argument
@base_option(required=False)
@click.option("--group-size", callback=group_size, help="Columns that share a scale, or channel (default 128).")
@click.option("--maths", type=click.Choice(["fp32", "eager"]), default="fp32", show_default=True)
@device_option
@writing_options
def command(src: Path, base: Path | None, group_size: int | None, maths: Any, **options: Any) -> None:
    """Pack lm_head of SRC to INT8, as a further group that vLLM, SGLang and transformers all resolve to it.

    Only the shard that holds the head is written. Ignore entries that cover the head are removed; one that covers more
    is replaced by entries for the rest. The dense head comes from SRC, or from the base where SRC lacks it. maths says
    where a quotient is rounded: fp32 as on current GPUs, eager as on CPUs.
    """
    writing = writing_from(options)
    require_torch("int8-head")
    from checkpoint import Draft, open_checkpoint
    from surgery import Scheme, int8_head

    scheme = Scheme(8, 128 if group_size is None else group_size or None)
    source = open_checkpoint(base) if base else None
    draft = int8_head(Draft.of(open_checkpoint(src)), base=source, scheme=scheme, maths=maths)
    carry_out(draft, writing, base=source)
