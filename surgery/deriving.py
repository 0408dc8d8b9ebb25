"""The shortest ignore list that every engine reads alike, computed from what is dense and what is packed.

Each entry starts with `.*`, because engines put their own prefixes before a checkpoint's names, and covers no packed
module. Entries are chosen greedily: the one that covers most of what is left, by a component it names, comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from checkpoint.patterns import matches

MTP_ENTRIES = ("re:^mtp.*", "re:.*mtp.*")
"""Both spellings of "the MTP head stays dense": SGLang looks for the first (sglang#36786), others need the second."""

_PREFIXES = frozenset({"model", "language_model", "layers", "blocks", "transformer"})
"""Components that say where a module is, not what it is."""


def derive_ignore(dense: Iterable[str], packed: Iterable[str]) -> list[str]:
    """Entries that cover every module of `dense` and none of `packed`."""
    shapes: dict[str, set[str]] = {}
    for name in dense:
        shapes.setdefault(_shape(name), set()).add(name)
    packed_by_shape: dict[str, set[str]] = {}
    for name in packed:
        packed_by_shape.setdefault(_shape(name), set()).add(name)
    mixed = shapes.keys() & packed_by_shape.keys()
    weights = {shape: len(names) for shape, names in shapes.items() if shape not in mixed}
    entries = _cover(weights, packed_by_shape.keys())
    hostile = {name for shape in mixed for name in packed_by_shape[shape]}
    leftovers = {name: 1 for shape in mixed for name in shapes[shape] if not any(matches(e, name) for e in entries)}
    entries += _cover(leftovers, hostile | packed_by_shape.keys())
    return _with_mtp_spellings(entries)


def _cover(weights: dict[str, int], packed: Iterable[str]) -> list[str]:
    """Greedy set cover of the names in `weights` by candidate entries that match nothing in `packed`."""
    packed = list(packed)
    covers: dict[str, set[str]] = {}
    for name in weights:
        for entry in _candidates(name):
            covers.setdefault(entry, set()).add(name)
    covers = {entry: names for entry, names in covers.items() if not any(matches(entry, name) for name in packed)}
    left, chosen = set(weights), []
    while left:
        best = max(covers, key=lambda e: (sum(weights[n] for n in covers[e] & left), -len(e)))
        chosen.append(best)
        left = {name for name in left - covers[best] if not matches(best, name)}
    return chosen


def _candidates(name: str) -> Iterator[str]:
    """Entries that could cover `name`: each subtree it lies in, widest spelling first, then itself."""
    parts = name.split(".")
    for here, part in enumerate(parts[:-1]):
        if part in _PREFIXES or part == "#":
            continue
        if part.isdecimal():
            if here and parts[here - 1] != "#":
                yield f"re:.*{re.escape(parts[here - 1])}\\.{part}\\..*"
            continue
        yield f"re:.*{re.escape(part)}.*"
        yield f"re:.*{re.escape(part)}\\..*"
    leaf = parts[-1]
    if len(parts) == 1:
        yield f"re:.*{re.escape(leaf)}$"
        return
    yield f"re:.*{re.escape(parts[-2])}\\.{re.escape(leaf)}$"
    if "_" in leaf:
        yield f"re:.*{re.escape(leaf)}$"
    yield "re:.*" + r"\.".join(r"\d+" if part == "#" else re.escape(part) for part in _own_parts(parts)) + "$"


def _own_parts(parts: list[str]) -> list[str]:
    """`parts` without the prefix that engines rename."""
    start = next((i for i, part in enumerate(parts) if part not in ("model", "language_model")), 0)
    return parts[start:]


def _shape(name: str) -> str:
    """`name` with its numbers replaced: modules of one shape differ only in layer and expert."""
    return ".".join("#" if part.isdecimal() else part for part in name.split("."))


def _with_mtp_spellings(entries: list[str]) -> list[str]:
    result: list[str] = []
    for entry in entries:
        result += MTP_ENTRIES if entry == MTP_ENTRIES[1] else [entry]
    return result
