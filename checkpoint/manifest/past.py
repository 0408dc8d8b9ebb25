"""The histories of all inputs in one: lists that the new run is added to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkpoint.manifest.inputs import Input

Entry = dict[str, Any]


@dataclass
class Past:
    """What the inputs' own manifests tell. `first_origin` is by input, the number that its first origin has here."""

    inputs: list[Entry] = field(default_factory=list)
    operations: list[Entry] = field(default_factory=list)
    origins: list[Entry] = field(default_factory=list)
    runs: list[Entry] = field(default_factory=list)
    first_origin: dict[int, int] = field(default_factory=dict)


def past_of(inputs: Sequence[Input]) -> tuple[Past, list[Entry]]:
    """The histories, one behind the other, and the entries of `inputs`, which say by which run each was written."""
    past = Past()
    entries = []
    for number, one in enumerate(inputs):
        entry = dict(one.entry)
        if one.history is not None:
            _append(past, one.history.document)
            past.first_origin[number] = len(past.origins) - len(one.history.document["origins"])
            entry["run"] = len(past.runs) - 1
        entries.append(entry)
    return past, entries


def _append(past: Past, told: Mapping[str, Any]) -> None:
    """Add what a manifest tells; its numbers are moved on by what stands there already."""
    inputs, operations = len(past.inputs), len(past.operations)
    origins, runs = len(past.origins), len(past.runs)
    past.inputs += ({**one, "run": _moved(one["run"], runs)} for one in told["inputs"])
    past.operations += (
        {**one, "inputs": {role: number + inputs for role, number in one["inputs"].items()}}
        for one in told["operations"]
    )
    by = {"input": inputs, "operation": operations, "was": origins}
    past.origins += (
        {key: value + by.get(key, 0) if key in by else value for key, value in one.items()} for one in told["origins"]
    )
    past.runs += (
        {
            **one,
            "inputs": [number + inputs for number in one["inputs"]],
            "operations": [number + operations for number in one["operations"]],
        }
        for one in told["runs"]
    )


def _moved(number: int | None, by: int) -> int | None:
    return None if number is None else number + by
