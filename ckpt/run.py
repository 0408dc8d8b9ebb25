"""`ckpt run`: a build from its recipe."""

from __future__ import annotations

from typing import Any

import click

from checkpoint import Place
from ckpt.options import PLACE, device_option, examples, require_torch, writing_from, writing_options
from ckpt.writing import carry_out

EXAMPLES = examples(
    "ckpt run experts-int4-g32 BASE --out EXPORT",
    "ckpt run body-int4-g128 BASE --dry-run",
    "ckpt run my-build.yaml --out EXPORT       # the recipe names its base",
)


@click.command("run", epilog=EXAMPLES)
@click.argument("recipe")
@click.argument("src", type=PLACE, required=False)
@device_option
@writing_options
def command(recipe: str, src: Place | None, **options: Any) -> None:
    """Make the build that RECIPE describes from the base SRC, in one write, and verify it against the recipe's profile.

    RECIPE is a file, or the name of one that comes with the package. A recipe with calibration is for `ckpt gptq`.
    """
    writing = writing_from(options)
    require_torch("run")
    from checkpoint import Draft, open_checkpoint
    from surgery import build, load_recipe

    found = load_recipe(recipe)
    if found.quantize is None:
        raise click.UsageError(f"{found.name} is calibrated; give it to ckpt gptq")
    base = src or found.base
    if base is None:
        raise click.UsageError(f"{found.name} names no base; give one behind it")
    origin = open_checkpoint(base)
    draft = build(Draft.of(origin), found)
    carry_out(draft, writing, base=origin, profile=found.profile, recipe=found.record)
