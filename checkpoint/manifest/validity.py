"""Is a document a manifest? By its schema, and by what no schema says: every number is within the list it points into.

A schema takes seconds for 93,000 rows, so tables that are sound as a whole are judged by their columns instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from checkpoint.errors import Problem
from checkpoint.folder import MANIFEST

SHOWN = 20
"""Rows of an unsound table, and faults, that are told."""

_DIGESTS = re.compile(r"(?:[0-9a-f]{64})*(?![\s\S])")


def faults_of(document: Mapping[str, Any]) -> list[Problem]:
    """All that is wrong with it; empty where it is a manifest. At most the first few of what is wrong many times."""
    from schemas import validate

    faults = validate(_lightened(document), "manifest")
    problems = [Problem("manifest-invalid", fault.message, MANIFEST, fault.path or None) for fault in faults[:SHOWN]]
    if not problems:
        problems = [
            Problem("manifest-invalid", f"{found}, of which there is none", MANIFEST, place)
            for place, found in islice(_astray(document), SHOWN)
        ]
    return problems


def _lightened(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document without the rows that are sound, and with a few only of those that are not."""
    shards = document.get("shards")
    if not isinstance(shards, dict):
        return document
    return {**document, "shards": {name: _without_rows(shard) for name, shard in shards.items()}}


def _without_rows(shard: Any) -> Any:
    rows = shard.get("tensors") if isinstance(shard, dict) else None
    if not isinstance(rows, dict):
        return shard
    if _are_sound(list(rows.values())) and "" not in rows:
        return {**shard, "tensors": {}}
    return {**shard, "tensors": dict(islice(((n, r) for n, r in rows.items() if not (n and _are_sound([r]))), SHOWN))}


def _are_sound(rows: Sequence[Any]) -> bool:
    """Is each row a list of a SHA-256, or None, and a whole number from 0?"""
    if not rows:
        return True
    if set(map(type, rows)) != {list} or set(map(len, rows)) != {2}:
        return False
    digests, origins = zip(*rows, strict=True)
    known = [digest for digest in digests if digest is not None]
    if set(map(type, origins)) != {int} or min(origins) < 0:
        return False
    return set(map(type, known)) <= {str} and set(map(len, known)) <= {64} and bool(_DIGESTS.match("".join(known)))


def _astray(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(place, what it points at) of each number that points at nothing. Origins point back only: no circles."""
    inputs, operations, runs = (len(document[key]) for key in ("inputs", "operations", "runs"))
    origins = document["origins"]
    for number, run in enumerate(document["runs"]):
        yield from _beyond(f"runs[{number}].inputs", run["inputs"], inputs, "input")
        yield from _beyond(f"runs[{number}].operations", run["operations"], operations, "operation")
    for number, one in enumerate(document["inputs"]):
        yield from _beyond(f"inputs[{number}].run", _listed(one["run"]), runs - 1, "earlier run")
    for number, one in enumerate(document["operations"]):
        yield from _beyond(f"operations[{number}].inputs", one["inputs"].values(), inputs, "input")
    for number, one in enumerate(origins):
        yield from _beyond(f"origins[{number}].input", [one["input"]], inputs, "input")
        yield from _beyond(f"origins[{number}].operation", _listed(one.get("operation")), operations, "operation")
        yield from _beyond(f"origins[{number}].was", _listed(one.get("was")), number, "earlier origin")
    for name, shard in document["shards"].items():
        yield from _beyond(f"shards.{name}.origin", _listed(shard["origin"]), len(origins), "origin")
        numbers = {row[1] for row in shard.get("tensors", {}).values()}
        yield from _beyond(f"shards.{name}.tensors", sorted(numbers), len(origins), "origin")
    for name, file in document["files"].items():
        source = file["from"]
        yield from _beyond(f"files.{name}.from", [source["input"]] if source else [], inputs, "input")


def _listed(number: int | None) -> list[int]:
    return [] if number is None else [number]


def _beyond(place: str, numbers: Any, end: int, what: str) -> Iterator[tuple[str, str]]:
    for number in numbers:
        if number >= end:
            yield place, f"{what} {number}"
            return
