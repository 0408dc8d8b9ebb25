"""The part of the page on the layout: folded modules, shards and side files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from verify.reports.contents import rows_of
from verify.reports.markup import Markup, element


def inside(document: Mapping[str, Any]) -> Iterator[Markup]:
    """The layout document as tables."""
    totals = document["totals"]
    yield element("h2", "Layout")
    said = (
        f"{document['model_type'] or 'no model_type'}: {totals['tensors']:,} tensors in {totals['shards']:,} shards, "
    )
    said += f"{_size(totals['bytes'])}; {totals['packed_modules']:,} of {totals['modules']:,} modules packed"
    yield element("p", said, class_="sum")
    modules = [
        (name, entry["kind"] or "", _stored(entry), _shape(entry), f"{entry['count']:,}", _size(entry["bytes"]))
        for name, entry in document["modules"].items()
    ]
    yield rows_of(("module", "kind", "stored", "shape", "count", "bytes"), modules, words=4)
    yield from _files("Shards", document["shards"])
    yield from _files("Side files", document["side_files"])


def _files(title: str, entries: Mapping[str, Mapping[str, Any]]) -> Iterator[Markup]:
    if entries:
        rows = [(name, _size(entry["bytes"])) for name, entry in entries.items()]
        yield element("details", element("summary", f"{title} ({len(rows):,})"), rows_of(("file", "bytes"), rows))


def _stored(entry: Mapping[str, Any]) -> str:
    """`BF16`, `INT4 g32`, or what is odd about it."""
    if entry.get("bits"):
        size = entry.get("group_size")
        asymmetric = "" if entry.get("symmetric", True) else " asymmetric"
        return f"INT{entry['bits']} {f'g{size}' if size else entry.get('strategy') or ''}{asymmetric}".rstrip()
    return str(entry.get("dtype") or entry["state"])


def _shape(entry: Mapping[str, Any]) -> str:
    return " x ".join("?" if size is None else str(size) for size in entry.get("shape", ()))


def _size(nbytes: int) -> str:
    value, unit = float(nbytes), 0
    units = ("B", "kB", "MB", "GB", "TB")
    while value >= 999.5 and unit < len(units) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {units[unit]}"
