"""`ckpt fixup`: what an exporter leaves undone, in one pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ckpt.options import (
    any_lineage_option,
    base_option,
    device_option,
    examples,
    require_torch,
    source_argument,
    writing_from,
    writing_options,
)
from ckpt.writing import carry_out

EXAMPLES = examples(
    "ckpt fixup EXPORT --base BASE --out FIXED",
    "ckpt fixup EXPORT --base BASE --int8-head --in-place",
    "ckpt fixup EXPORT --base BASE --keep 're:.*input_layernorm.weight$' --dry-run   # AWQ folded scales into these",
)


@click.command("fixup", epilog=EXAMPLES)
@source_argument
@base_option(required=True)
@click.option("--int8-head", is_flag=True, help="Pack lm_head to INT8 g128 too.")
@click.option("--restore", multiple=True, help="Tensors to put back though no rounding explains the difference.")
@click.option("--keep", multiple=True, help="Tensors whose difference is meant. Names or re:PATTERN, may be repeated.")
@any_lineage_option
@click.option("--maths", type=click.Choice(["fp32", "eager"]), default="fp32", show_default=True)
@device_option
@writing_options
def command(src: Path, base: Path, **options: Any) -> None:
    """Mend an export in one write: MTP head, altered dense tensors, ignore list, side files, and the head if asked.

    Every dense tensor is compared with the base. One that differs as a cast or an exporter's re-rounding would make it
    is put back; one that differs otherwise is refused until named, since AWQ and SmoothQuant fold scales into norms.
    """
    int8, restore, keep = options.pop("int8_head"), options.pop("restore"), options.pop("keep")
    any_lineage, maths = options.pop("any_lineage"), options.pop("maths")
    writing = writing_from(options)
    if int8:
        require_torch("fixup --int8-head")
    from checkpoint import Draft, Refused, open_checkpoint
    from ckpt.comparing import compared
    from surgery import Scheme, fixup, keep_dense, lineage_problems

    origin, source = open_checkpoint(src), open_checkpoint(base)
    problems = [] if any_lineage else lineage_problems(origin, source)
    if problems:  # against the wrong base everything differs, which would bury the reason
        raise Refused(problems)
    differences = keep_dense(compared(origin, source, writing.output), keep)
    head = Scheme(8, 128) if int8 else None
    draft = fixup(Draft.of(origin), source, differences, restore=restore, head=head, maths=maths)
    carry_out(draft, writing, base=source)
