"""`ckpt inspect`: what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import click

from checkpoint import Checkpoint, CkptError, Place, Problem, Root, UnreadableCheckpoint
from ckpt.costing import Asked, asked_from, costs_given, costs_options
from ckpt.options import PLACE, examples, output_from, output_options
from ckpt.output import Output, table
from ckpt.text import plural, size

EXAMPLES = examples(
    "ckpt inspect EXPORT",
    "ckpt inspect EXPORT --modules",
    "ckpt inspect EXPORT --json",
    "ckpt inspect EXPORT --context 8192 --streams 5 --speculative 1 --acceptance 0.8",
    "ckpt inspect EXPERTS_ONLY FULL_BODY --measured 4.6ms --measured 3.6ms",
)


@click.command("inspect", epilog=EXAMPLES)
@click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=PLACE)
@click.option("--modules", is_flag=True, help="List the modules, folded, rather than their sums by kind.")
@click.option("--costs", "alone", is_flag=True, help="The costs alone; with --json, as a document.")
@costs_options
@output_options
def command(sources: tuple[Place, ...], modules: bool, alone: bool, **options: Any) -> None:
    """What is in SRC: kinds of modules, dtypes, schemes and bytes, config groups, ignore list, side files; its costs.

    Costs are bytes on disk, in vLLM's memory, and moved for a decoded token, by part, with the time that these take at
    least. Several SRC are shown side by side by their costs. Reads headers and config only. --json prints the layout
    document, or with --costs or several SRC that of the costs.
    """
    output = output_from(options)
    asked = asked_from(options, len(sources))
    if modules and (alone or len(sources) > 1):
        raise click.UsageError("--modules is for one SRC, without --costs")
    if output.as_json and not alone and len(sources) == 1 and (given := costs_given()):
        raise click.UsageError(f"--json prints the layout, without costs: {given} needs --costs")
    opened = _open(sources)
    if alone or len(sources) > 1:
        _show_costs(opened, asked, output)
    else:
        _show_one(opened[0], modules, asked, output)
    for checkpoint in opened:
        for problem in checkpoint.problems:
            output.hint(f"note: {problem}")


def _open(sources: tuple[Place, ...]) -> list[Checkpoint]:
    """All of them, or UnreadableCheckpoint with the problems of all that cannot be read."""
    from checkpoint import open_checkpoint

    opened: list[Checkpoint] = []
    problems: list[Problem] = []
    for source in sources:
        try:
            opened.append(open_checkpoint(source))
        except CkptError as error:
            if len(sources) == 1:
                raise
            problems += [_of(source, problem) for problem in error.problems]
    if problems:
        raise UnreadableCheckpoint(problems)
    return opened


def _of(source: Place, problem: Problem) -> Problem:
    """The problem, with the place among several that has it."""
    known = problem.file or ""
    return problem if known.startswith(str(source)) else replace(problem, file=f"{source}: {known}".rstrip(": "))


def _show_one(checkpoint: Checkpoint, modules: bool, asked: Asked, output: Output) -> None:
    """What is in one checkpoint, and below it the costs."""
    from checkpoint.layout import layout
    from ckpt.costs_words import show_costs

    document = layout(checkpoint)
    output.result(document)
    _show_head(checkpoint.root, document, output)
    rows = _module_rows(document["modules"]) if modules else _kind_rows(document["modules"].values())
    for line in table(rows, right=frozenset({2, 3, 4})):
        output.line(line)
    _show_config(document, output)
    if not modules and not output.as_json and not output.quiet:
        output.line()
        show_costs(asked.of(checkpoint, document), asked, output)


def _show_costs(opened: list[Checkpoint], asked: Asked, output: Output) -> None:
    from ckpt.costs_words import show_costs, show_side_by_side
    from costs import document

    found = [asked.of(checkpoint) for checkpoint in opened]
    output.result(document(found, asked.bandwidth, asked.measured))
    if len(found) > 1:
        show_side_by_side(found, asked, output)
    else:
        show_costs(found[0], asked, output)


def _show_head(root: Root, document: Mapping[str, Any], output: Output) -> None:
    totals = document["totals"]
    family = document["family"] or "unknown family"
    output.line(f"{root}: {document['model_type'] or 'no model_type'} ({family}){', tied' if document['tied'] else ''}")
    output.line(
        f"{plural(totals['tensors'], 'tensor')} in {plural(totals['shards'], 'shard')}, {size(totals['bytes'])}; "
        f"{totals['packed_modules']:,} of {plural(totals['modules'], 'module')} packed"
    )
    output.line()


def _kind_rows(entries: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Sums by kind and stored form, largest first."""
    sums: dict[tuple[str, str], list[int]] = {}
    for entry in entries:
        row = sums.setdefault((entry["kind"] or "other", _stored(entry)), [0, 0, 0])
        row[0] += entry["count"]
        row[1] += entry["count"] * _parameters(entry)
        row[2] += entry["bytes"]
    body = [(k, s, f"{n:,}", f"{p:,}", size(b)) for (k, s), (n, p, b) in sorted(sums.items(), key=lambda i: -i[1][2])]
    return [("kind", "stored", "modules", "parameters", "bytes"), *body]


def _module_rows(entries: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    rows = [
        (
            pattern,
            _stored(entry),
            "x".join(map(str, entry.get("shape", ()))),
            f"{entry['count']:,}",
            size(entry["bytes"]),
        )
        for pattern, entry in entries.items()
    ]
    return [("modules", "stored", "shape", "count", "bytes"), *rows]


def _stored(entry: Mapping[str, Any]) -> str:
    """`BF16`, or `INT4 g32`, with what is irregular said."""
    if entry["state"] != "packed":
        form = str(entry.get("dtype", entry["state"]))
    else:
        grouping = f"g{entry['group_size']}" if entry["group_size"] else str(entry["strategy"])
        form = f"INT{entry['bits'] or '?'} {grouping}" + ("" if entry["symmetric"] else " asymmetric")
    return form + (f", lacks {', '.join(entry['missing'])}" if entry.get("missing") else "")


def _parameters(entry: Mapping[str, Any]) -> int:
    return prod(side for side in entry.get("shape", ()) if side is not None)


def _show_config(document: Mapping[str, Any], output: Output) -> None:
    quantization = document["quantization"]
    output.line()
    if quantization is None:
        output.line("not quantized")
    else:
        output.line(f"{quantization['quant_method']}, {quantization['format']}")
        for name, group in quantization["config_groups"].items():
            output.line(f"  {name}: {_group(group)} <- {' '.join(group['targets'])}")
        output.line(f"  ignore: {' '.join(quantization['ignore']) or 'nothing'}")
    output.line("side files: " + (" ".join(document["side_files"]) or "none"))


def _group(group: Mapping[str, Any]) -> str:
    weights = group.get("weights") or {}
    grouping = f"g{weights.get('group_size')}" if weights.get("strategy") == "group" else weights.get("strategy")
    return f"{weights.get('num_bits', '?')} bit {grouping}" + ("" if weights.get("symmetric", True) else " asymmetric")
