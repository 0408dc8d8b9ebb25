"""The shortest ignore list that every engine reads alike, computed from what is dense and what is packed.

Entries start with `.*`, because engines put their own prefixes before a checkpoint's names, and cover no packed module.
They are chosen greedily: the one that covers most of what is left comes first. Where a kind of module is packed in some
layers and dense in others, entries name the layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from checkpoint.folding import fold, unfold
from checkpoint.patterns import matches
from surgery.mtp import MTP_ENTRIES

_PREFIXES = frozenset({"model", "language_model", "layers", "blocks", "transformer"})
"""Components that say where a module is, not what it is."""

_NUMBER = r"\d+"


class _Entry(NamedTuple):
    """An ignore entry, and what the kind of a module must contain (or end with) for the entry to cover it."""

    text: str
    needle: str
    at_end: bool

    def covers_any(self, kinds: str) -> bool:
        """Is one of `kinds`, each on a line of its own, covered?"""
        return (f"{self.needle}\n" if self.at_end else self.needle) in kinds


def derive_ignore(dense: Iterable[str], packed: Iterable[str]) -> list[str]:
    """Entries that cover every module of `dense` and none of `packed`. The order of either does not matter."""
    dense_of, packed_of = _by_kind(dense), _by_kind(packed)
    pure = {kind: len(names) for kind, names in dense_of.items() if kind not in packed_of}
    entries, left = _cover_kinds(pure, packed_of)
    rest = [name for kind, names in dense_of.items() if kind in packed_of or kind in left for name in names]
    entries += _cover_names(rest, packed_of)
    return [spelling for entry in entries for spelling in (MTP_ENTRIES if entry == MTP_ENTRIES[1] else (entry,))]


def _by_kind(names: Iterable[str]) -> dict[str, list[str]]:
    """Modules by kind: the name with `#` for its numbers. Those of one kind differ only in layer and expert."""
    found: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        kind = ".".join("#" if part.isdecimal() else part for part in name.split("."))
        found.setdefault(kind, []).append(name)
    return found


def _cover_kinds(weights: dict[str, int], packed_kinds: Iterable[str]) -> tuple[list[str], set[str]]:
    """Greedy cover of the kinds in `weights`; returns the entries, and the kinds that no safe entry covers."""
    hostile = "".join(f"{kind}\n" for kind in packed_kinds)
    candidates = dict.fromkeys(entry for kind in weights for entry in _entries_for(kind))
    safe = [entry for entry in candidates if not entry.covers_any(hostile)]
    covers = {entry: {kind for kind in weights if entry.covers_any(f"{kind}\n")} for entry in safe}
    chosen: list[str] = []
    left = set(weights)
    while any(covers[entry] & left for entry in safe):
        best = max(safe, key=lambda entry: (sum(weights[kind] for kind in covers[entry] & left), -len(entry.text)))
        chosen.append(best.text)
        left -= covers[best]
    return chosen, left


def _entries_for(kind: str) -> Iterator[_Entry]:
    """Entries that could cover `kind`: the subtrees it lies in, its last components, then its name from the layer on."""
    parts = kind.split(".")
    for part in parts[:-1]:
        if part not in _PREFIXES and part != "#":
            yield _Entry(f"re:.*{re.escape(part)}.*", part, False)
            yield _Entry(f"re:.*{re.escape(part)}\\..*", f"{part}.", False)
    for count in (1, 2):
        tail = parts[-count:]
        if "#" not in tail and (count == 2 or "_" in tail[0] or len(parts) == 1):
            yield _ending(tail)
    own = _own_parts(parts)
    if own[0] != "#":
        yield _ending(own)
        if len(own) < len(parts):
            # checkpoints say `model.language_model.layers`, vLLM `language_model.model.layers`: both end in this
            yield _ending(["model", *own])


def _ending(parts: list[str]) -> _Entry:
    pattern = r"\.".join(_NUMBER if part == "#" else re.escape(part) for part in parts)
    return _Entry(f"re:.*{pattern}$", ".".join(parts), True)


def _own_parts(parts: list[str]) -> list[str]:
    """`parts` without the prefix that engines rename."""
    start = next((i for i, part in enumerate(parts) if part not in ("model", "language_model")), 0)
    return parts[start:]


def _cover_names(names: list[str], packed_of: dict[str, list[str]]) -> list[str]:
    """Entries for modules whose kind alone does not tell them from packed ones: whole layers, then sets of numbers."""
    packed = [name for names_of_kind in packed_of.values() for name in names_of_kind]
    entries = list(_whole_layers(names, packed))
    rest = [name for name in names if not any(matches(entry, name) for entry in entries)]
    for folded in fold((name, 0) for name in rest):
        entry = _numbered(folded.pattern.split("."), packed)
        entries += [entry] if entry else list(unfold(folded.pattern))
    return entries


def _whole_layers(names: list[str], packed: list[str]) -> Iterator[str]:
    """`re:.*layers\\.(0|39)\\..*` for the layers in which nothing is packed."""
    numbered = {_first_number(name) for name in names} - {None}
    taken = {_first_number(name) for name in packed}
    for component in sorted({place[0] for place in numbered if place}):
        numbers = sorted(int(place[1]) for place in numbered - taken if place and place[0] == component)
        needles = [f"{component}.{number}." for number in numbers]
        free = [n for n, needle in zip(numbers, needles, strict=True) if not any(needle in name for name in packed)]
        if free:
            yield f"re:.*{re.escape(component)}\\.{_one_of(map(str, free))}\\..*"


def _first_number(name: str) -> tuple[str, str] | None:
    """The first number in a name and the component before it: ("layers", "3")."""
    parts = name.split(".")
    return next(((parts[i - 1], part) for i, part in enumerate(parts) if i and part.isdecimal()), None)


def _numbered(parts: list[str], packed: list[str]) -> str | None:
    """An entry for the names that a folded pattern stands for; None where each would cover a packed module.

    The last numbers are left open if that does no harm: `experts\\.\\d+` rather than 256 numbers.
    """
    own = [_one_of(unfold(part)) for part in _own_parts(parts)]
    numbers = [i for i, part in enumerate(_own_parts(parts)) if part.startswith("{") or part.isdecimal()]
    for opened in (numbers[1:], []):
        pattern = r"\.".join(_NUMBER if i in opened else part for i, part in enumerate(own))
        for start in ("re:.*", r"re:.*model\."):
            entry = f"{start}{pattern}$"
            if not any(matches(entry, name) for name in packed):
                return entry
    return None


def _one_of(alternatives: Iterable[str]) -> str:
    escaped = [re.escape(alternative) for alternative in alternatives]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"
