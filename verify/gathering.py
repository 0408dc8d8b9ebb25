"""One hit for one cause: ten thousand tensors with the same fault are one place, folded, and a count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from checkpoint.folding import fold
from verify.registry import Hit

DISTINCT = 8
"""How many differently worded faults of one rule are told apart; the rest is summed up."""

PLACES = 40
"""How many folded names a place spells out; a report shows the first of them unless asked for all."""


def gather(faults: Iterable[tuple[str, str]], **details: Any) -> Iterator[Hit]:
    """Hits for (name, what was found), one for each distinct wording; `details` are the other fields of `Hit`."""
    names: dict[str, list[str]] = {}
    for name, found in faults:
        names.setdefault(found, []).append(name)
    wordings = list(names)
    for found in wordings[:DISTINCT]:
        yield Hit(folded(names[found]), found, count=len(names[found]), **details)
    rest = [name for found in wordings[DISTINCT:] for name in names[found]]
    if rest:
        found = f"{wordings[DISTINCT]}, and likewise in {len(wordings) - DISTINCT - 1} other ways"
        yield Hit(folded(rest), found, count=len(rest), **details)


def folded(names: Iterable[str]) -> str:
    """The names with their numbers folded into ranges, the first few spelled out."""
    families = [family.pattern for family in fold((name, None) for name in names)]
    shown = ", ".join(families[:PLACES])
    return shown if len(families) <= PLACES else f"{shown} and {len(families) - PLACES} more"
