"""A result as the document that `schemas/diff.schema.json` describes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from checkpoint.folding import fold
from compare.documents import ABSENT, Change
from compare.grouping import Layer, Row, by_family, by_layer, row_of
from compare.measures import Sums
from compare.result import Entry, Result
from compare.weights import Weight
from schemas.validation import readable_path

VERSION = 1


def document(result: Result) -> dict[str, Any]:
    """All of it. Names that differ in numbers only are folded where nothing else is told of them."""
    same = ((entry.name, entry.storage) for entry in result.entries if entry.state == "equal in value")
    return {
        "version": VERSION,
        "a": result.a,
        "b": result.b,
        "level": result.level,
        "different": result.is_different,
        "counts": _counts(result),
        "bytes": {"read": result.read, "same_file": result.known["file"], "same_hash": result.known["hash"]},
        "total": _measure(result.total),
        "families": [_family(name, entries) for name, entries in by_family(result.entries).items()],
        "layers": [_layer(layer, entries) for layer, entries in by_layer(result.entries).items()],
        "worst": [entry.name for entry in result.worst],
        "changed": [_entry(entry) for entry in (*result.measured, *result.unmeasured)],
        "equal_in_value": [
            {"names": one.pattern, "count": one.count, "a": one.state[0], "b": one.state[1]} for one in fold(same)
        ],
        "removed": _alone(result.removed),
        "added": _alone(result.added),
        "side_files": [asdict(file) for file in result.side_files],
        "config": {"state": result.config.state, "changes": _changes(result.config.changes)},
        "index": {
            "state": result.index.state,
            "changes": _changes(result.index.metadata),
            "moved": result.index.moved,
        },
    }


def _counts(result: Result) -> dict[str, int]:
    states = {"equal": "equal", "equal_in_value": "equal in value", "changed": "changed", "not_read": "not read"}
    both = {key: result.counts[state] for key, state in states.items()}
    return {**both, "removed": len(result.removed), "added": len(result.added)}


def _family(name: str, entries: Sequence[Entry]) -> dict[str, Any]:
    layers = [_layer(layer, members) for layer, members in by_layer(entries).items()]
    return {"family": name, "kind": entries[0].kind, **_row(row_of(entries)), "layers": layers}


def _layer(layer: Layer, entries: Sequence[Entry]) -> dict[str, Any]:
    return {"stack": layer[0], "layer": layer[1], **_row(row_of(entries))}


def _row(row: Row) -> dict[str, Any]:
    counts = {"count": row.count, "equal": row.equal, "equal_in_value": row.equal_in_value, "changed": row.changed}
    return {**counts, "forms": [{"a": a, "b": b} for a, b in row.forms], "measure": _measure(row.sums)}


def _entry(entry: Entry) -> dict[str, Any]:
    a, b = entry.pair.a.form, entry.pair.b.form
    return {"name": entry.name, "kind": entry.kind, "a": a, "b": b, "measure": _measure(entry.sums), "why": entry.why}


def _measure(sums: Sums | None) -> dict[str, Any] | None:
    """Numbers that JSON has no word for, as the SQNR of what is equal, are null."""
    if sums is None:
        return None
    packed = {"saturation": sums.saturation, "groups": sums.groups, "zero_groups": sums.zero, "lost_groups": sums.lost}
    return {
        "weights": sums.weights,
        "differing": sums.differing,
        "error": _finite(sums.relative),
        "sqnr": _finite(sums.sqnr),
        "max": sums.largest_error if sums.is_finite else None,
        "max_relative": _finite(sums.largest_relative),
        "finite": sums.is_finite,
        **packed,
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _alone(weights: Iterable[Weight]) -> list[dict[str, Any]]:
    """Weights of one side, folded."""
    return [
        {"names": one.pattern, "count": one.count, "form": one.state}
        for one in fold((weight.name, weight.form) for weight in weights)
    ]


def _changes(changes: Iterable[Change]) -> list[dict[str, Any]]:
    return [
        {
            "path": readable_path(one.path),
            **{side: value for side, value in (("a", one.a), ("b", one.b)) if value is not ABSENT},
        }
        for one in changes
    ]
