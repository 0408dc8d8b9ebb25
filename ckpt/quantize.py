"""`ckpt quantize`: RTN of selected modules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckpt.options import (
    device_option,
    examples,
    group_size,
    require_torch,
    source_argument,
    writing_from,
    writing_options,
)
from ckpt.writing import carry_out

if TYPE_CHECKING:
    from surgery import Group, Maths, Preset

EXAMPLES = examples(
    "ckpt quantize BASE --preset experts-int4-g32 --out EXPORT",
    "ckpt quantize BASE --preset body-int4-g128 --group-size 64 --dry-run",
    "ckpt quantize BASE --target Linear --ignore 're:.*mlp.down_proj$' --bits 8 --group-size channel --out EXPORT",
)


@click.command("quantize", epilog=EXAMPLES)
@source_argument
@click.option("--preset", help="A published build: experts-int4-g32 or body-int4-g128.")
@click.option("--target", "targets", multiple=True, help="Module name, re:PATTERN, or Linear. May be repeated.")
@click.option("--ignore", multiple=True, help="Modules that stay dense, by name or re:PATTERN. May be repeated.")
@click.option("--bits", type=click.Choice(["4", "8"]), help="Width of a code (default 4).")
@click.option("--group-size", callback=group_size, help="Columns that share a scale, or channel (default 128).")
@click.option("--asymmetric", is_flag=True, help="Store a zero point beside each scale.")
@click.option("--group", "further", multiple=True, help="A further group: TARGET=BITS:SIZE, as 're:.*lm_head$=8:128'.")
@click.option("--maths", type=click.Choice(["fp32", "eager"]), help="Where a quotient is rounded (default fp32).")
@device_option
@writing_options
def command(src: Path, **options: Any) -> None:
    """Pack selected modules of SRC to compressed-tensors pack-quantized, by round-to-nearest.

    Targets and ignores are module names (without .weight), with the meaning compressed-tensors gives them: re:PATTERN
    is matched at the start of the name. The first group that covers a module decides. Fused experts are split into
    per-expert modules where they are packed. All that is wrong is reported before anything is written.
    """
    writing = writing_from(options)
    require_torch("quantize")
    from checkpoint import Draft, open_checkpoint
    from surgery import quantize

    groups, ignore, maths = _request(options)
    origin = open_checkpoint(src)
    carry_out(quantize(Draft.of(origin), groups, ignore=ignore, maths=maths), writing, base=origin)


def _request(options: dict[str, Any]) -> tuple[tuple[Group, ...], tuple[str, ...], Maths]:
    """The groups, ignores and maths that the options ask for."""
    if options["preset"]:
        if options["targets"] or options["bits"] or options["asymmetric"]:
            raise click.UsageError(
                "--preset says what is packed and how; only --group-size, --ignore, --group go with it"
            )
        preset = _preset(options["preset"], options["group_size"])
        groups, ignore, maths = preset.groups, preset.ignore, preset.maths
    else:
        groups, ignore, maths = _own_group(options), (), "fp32"
    further = tuple(_further(text) for text in options["further"])
    return (*further, *groups), (*ignore, *options["ignore"]), options["maths"] or maths


def _preset(name: str, size: int | None) -> Preset:
    from surgery import load_preset, preset_names

    try:
        preset = load_preset(name)
    except KeyError:
        raise click.BadParameter(f"{name!r}; there are {', '.join(preset_names())}", param_hint="--preset") from None
    return preset if size is None else preset.regrouped(size or None)


def _own_group(options: dict[str, Any]) -> tuple[Group, ...]:
    from surgery import Group, Scheme

    if not options["targets"]:
        if options["further"]:
            return ()
        raise click.UsageError("give --preset NAME, or --target")
    size = 128 if options["group_size"] is None else options["group_size"] or None
    return (Group(options["targets"], Scheme(int(options["bits"] or 4), size, not options["asymmetric"])),)


def _further(text: str) -> Group:
    """`TARGET=BITS:SIZE` as a group. Further groups come first, so that they may narrow the main one."""
    from surgery import Group, Scheme

    target, _, spelled = text.rpartition("=")
    bits, _, size = spelled.partition(":")
    wellformed = target and bits in ("4", "8") and (size == "channel" or (size.isdecimal() and int(size) > 0))
    if not wellformed:
        raise click.BadParameter(f"{text!r} is not TARGET=BITS:SIZE, as 're:.*lm_head$=8:128'", param_hint="--group")
    return Group((target,), Scheme(int(bits), None if size == "channel" else int(size)))
