"""Sums by families of modules, which differ in numbers only, and by layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from compare.measures import Sums
from compare.result import Entry

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")

ANY = "*"
"""Stands in a family's name for every number."""

Layer = tuple[str, int]
"""What stands in a name before its first number, and that number: `("model.layers", 3)`."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Row:
    """Weights taken together: how many of them there are on both sides, in each state, and their `sums` where they
    changed and could be measured. `forms` are the ways in which those that are not equal are stored on both sides."""

    count: int
    equal: int
    equal_in_value: int
    changed: int
    sums: Sums | None
    forms: tuple[tuple[str, str], ...]


@lru_cache(maxsize=1 << 17)
def family_of(name: str) -> str:
    """`model.layers.*.mlp.experts.*.up_proj.weight`"""
    return NUMBER.sub(ANY, name)


@lru_cache(maxsize=1 << 17)
def layer_of(name: str) -> Layer | None:
    """The layer of a weight; None where its name has no number."""
    match = NUMBER.search(name)
    return (name[: match.start()].rstrip("."), int(match[0])) if match and len(match[0]) < 10 else None


def grouped(entries: Iterable[Entry], key: Callable[[Entry], Key]) -> dict[Key, list[Entry]]:
    """Entries by key, in first-seen order."""
    groups: dict[Key, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return groups


def by_family(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Entries by family."""
    return grouped(entries, lambda entry: family_of(entry.name))


def by_layer(entries: Iterable[Entry]) -> dict[Layer, list[Entry]]:
    """Entries by layer, those that are in one, the layers of a stack in order."""
    groups = grouped(entries, lambda entry: layer_of(entry.name))
    stacks = list(dict.fromkeys(layer[0] for layer in groups if layer))
    layers = sorted((layer for layer in groups if layer), key=lambda layer: (stacks.index(layer[0]), layer[1]))
    return {layer: groups[layer] for layer in layers}


def row_of(entries: Sequence[Entry]) -> Row:
    """The entries taken together."""
    states = [entry.state for entry in entries]
    measured = [entry.sums for entry in entries if entry.state == "changed" and entry.sums is not None]
    forms = dict.fromkeys(entry.storage for entry in entries if entry.state != "equal")
    return Row(
        len(entries),
        states.count("equal"),
        states.count("equal in value"),
        states.count("changed"),
        sum(measured, Sums()) if measured else None,
        tuple(forms),
    )
