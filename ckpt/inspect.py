"""`ckpt inspect`: what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import click

from checkpoint import Place, Root
from ckpt.options import examples, output_from, output_options, source_argument
from ckpt.output import Output, table
from ckpt.text import plural, size

EXAMPLES = examples("ckpt inspect EXPORT", "ckpt inspect EXPORT --modules", "ckpt inspect EXPORT --json")


@click.command("inspect", epilog=EXAMPLES)
@source_argument
@click.option("--modules", is_flag=True, help="List the modules, folded, rather than their sums by kind.")
@output_options
def command(src: Place, modules: bool, **options: Any) -> None:
    """What is in SRC: kinds of modules, dtypes, schemes and bytes, config groups, ignore list, side files.

    Reads headers and config only. --json prints the layout document.
    """
    output = output_from(options)
    from checkpoint import open_checkpoint
    from checkpoint.layout import layout

    checkpoint = open_checkpoint(src)
    document = layout(checkpoint)
    output.result(document)
    _show_head(checkpoint.root, document, output)
    rows = _module_rows(document["modules"]) if modules else _kind_rows(document["modules"].values())
    for line in table(rows, right=frozenset({2, 3, 4})):
        output.line(line)
    _show_config(document, output)
    for problem in checkpoint.problems:
        output.hint(f"note: {problem}")


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
