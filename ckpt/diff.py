"""`ckpt diff`: two checkpoints beside each other."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint import Place, escape
from checkpoint.wholefile import write_whole
from ckpt.options import PLACE, examples, memory_option, output_from, output_options
from ckpt.output import Output

if TYPE_CHECKING:
    from compare import Result

DIFFERENT = 1

EXAMPLES = examples(
    "ckpt diff BASE EXPORT                                   # every weight, however it is packed",
    "ckpt diff EXPORT FIXED                                  # linked shards are not read",
    "ckpt diff BASE EXPORT --layers --plot sqnr.svg",
    "ckpt diff hf://owner/base hf://owner/export --headers   # names, dtypes and shapes only",
    "ckpt diff OLD NEW --quiet --exit-code",
)


def _plot(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Callback: a file of a kind that can be drawn."""
    if value is not None and value.suffix.lower() not in (".png", ".svg"):
        raise click.BadParameter("a .png or .svg file")
    return value


FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("diff", epilog=EXAMPLES)
@click.argument("a", type=PLACE)
@click.argument("b", type=PLACE)
@click.option("--headers", is_flag=True, help="Compare names, dtypes and shapes; read no weights.")
@click.option("--sample", is_flag=True, help="Read the first rows of a few weights of each family.")
@click.option("--layers", is_flag=True, help="Print the errors by layer, too.")
@click.option("--plot", type=FILE, callback=_plot, help="Draw the errors by layer into a .png or .svg file.")
@click.option("--output", type=FILE, help="File to write the JSON document to.")
@click.option("--read-all", is_flag=True, help="Read also what a manifest or the Hub states to be equal by its hash.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 where anything differs.")
@click.option("--workers", type=click.IntRange(1, 256), help="Threads that read (default: the cores, at most 8).")
@memory_option
@output_options
def command(a: Place, b: Place, headers: bool, sample: bool, **options: Any) -> None:
    """What B holds that A does not, and how far its weights are from A's.

    Weights are matched by module: a packed one with the dense one that it was made of, an expert with its part of a
    fused parameter. Errors are those of the values that packed weights stand for. A and B are folders, or
    hf://owner/name[@revision].

    Exits with 0 however much they differ, unless --exit-code is given; with 3 where one cannot be read.
    """
    if headers and sample:
        raise click.UsageError("--headers and --sample exclude each other")
    if headers and options["plot"]:
        raise click.UsageError("--plot draws what is in the weights, which --headers does not read")
    output = output_from(options)
    result = _compared(a, b, "headers" if headers else "sample" if sample else "full", output, options)
    _show(result, output, options)
    if options["exit_code"] and result.is_different:
        raise click.exceptions.Exit(DIFFERENT)


def _compared(a: Place, b: Place, level: Any, output: Output, options: dict[str, Any]) -> Result:
    from compare import compare, require_plots

    if options["plot"]:
        require_plots()
    return compare(
        a,
        b,
        level=level,
        workers=options["workers"],
        memory=options["memory"],
        hashes=not options["read_all"],
        watched=lambda total: output.progress("comparing", total),
    )


def _show(result: Result, output: Output, options: dict[str, Any]) -> None:
    """As JSON, as tables, into files. Raises WriteFailed."""
    from ckpt.differences import lines, summary
    from compare import document, draw

    if output.as_json:
        output.result(document(result))
    if options["output"]:
        text = json.dumps(document(result), indent=2, ensure_ascii=True) + "\n"
        write_whole(text.encode(), options["output"], "report-unwritable")
        if not output.quiet:
            print(escape(f"{summary(result)}; written to {options['output']}"), file=sys.stderr)
    elif not (output.as_json or output.quiet):
        for line in lines(result, layers=options["layers"]):
            output.line(line)
    if options["plot"] and not draw(result, options["plot"]):
        output.hint(f"no weight changed by an amount that can be drawn: {options['plot']} was not written")
