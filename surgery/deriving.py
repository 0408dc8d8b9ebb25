"""The shortest ignore list that every engine reads alike, computed from what is dense and what is packed.

Entries start with `.*`, because engines put their own prefixes before a checkpoint's names, and cover no packed module.
They are chosen greedily: the one that covers most of what is left comes first. Where a kind of module is packed in some
layers and dense in others, entries name the layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
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
    spelled = (MTP_ENTRIES if entry == MTP_ENTRIES[1] else (entry,) for entry in entries)
    return list(dict.fromkeys(chain.from_iterable(spelled)))


def _by_kind(names: Iterable[str]) -> dict[str, list[str]]:
    """Modules by kind: the name with `#` for its numbers. Those of one kind differ only in layer and expert."""
    found: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        kind = ".".join("#" if part.isdecimal() else part for part in name.split("."))
        found.setdefault(kind, []).append(name)
    return found


def _cover_kinds(weights: dict[str, int], packed_kinds: Iterable[str]) -> tuple[list[str], set[str]]:
    """Greedy cover of the kinds in `weights`; returns the entries, and the kinds that no safe entry covers."""
    covers: dict[_Entry, set[str]] = {}
    for kind in weights:
        for entry in _entries_for(kind):
            covers.setdefault(entry, set()).add(kind)
    hostile = "".join(f"{kind}\n" for kind in packed_kinds)
    safe = {entry: kinds for entry, kinds in covers.items() if not entry.covers_any(hostile)}
    chosen, left = [], set(weights)
    while coverable := [entry for entry, kinds in safe.items() if kinds & left]:
        # of equals the first, which is the shortest spelling of its kind
        best = max(coverable, key=lambda entry: sum(weights[kind] for kind in safe[entry] & left))
        chosen.append(best.text)
        left = {kind for kind in left if not best.covers_any(f"{kind}\n")}
    return chosen, left


def _entries_for(kind: str) -> Iterator[_Entry]:
    """Entries that could cover `kind`: subtrees it lies in, its last components, its name without the prefix."""
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
    entries = list(_whole_layers(names, [name for packed in packed_of.values() for name in packed]))
    rest = [name for name in names if not any(matches(entry, name) for entry in entries)]
    for folded in fold((name, 0) for name in rest):
        entry = _numbered(folded.pattern.split("."), packed_of)
        entries += [entry] if entry else list(unfold(folded.pattern))
    return entries


def _whole_layers(names: list[str], packed: list[str]) -> Iterator[str]:
    r"""`re:.*layers\.(0|39)\..*` for the layers of `names` in which nothing is packed."""
    text = "\n".join(packed)
    free: dict[str, set[str]] = {}
    for name in names:
        parts = name.split(".")
        place = next((i for i, part in enumerate(parts[:-1]) if i and part.isdecimal()), None)
        if place and f"{parts[place - 1]}.{parts[place]}." not in text:
            free.setdefault(parts[place - 1], set()).add(parts[place])
    for component, numbers in free.items():
        yield f"re:.*{re.escape(component)}\\.{_one_of(sorted(numbers, key=int))}\\..*"


def _numbered(parts: list[str], packed_of: dict[str, list[str]]) -> str | None:
    r"""An entry for the names that a folded pattern stands for; None where each would cover a packed module.

    All numbers but the first are left open if that does no harm: `experts\.\d+` rather than 256 numbers.
    """
    own = _own_parts(parts)
    starts = ("re:.*", r"re:.*model\.") if len(own) < len(parts) else ("re:.*",)
    numbers = [i for i, part in enumerate(own) if part.startswith("{") or part.isdecimal()]
    kind = ".".join("#" if i in numbers else part for i, part in enumerate(own))
    near = [name for k, names in packed_of.items() if k.endswith(kind) or 0 in numbers for name in names]
    for opened in (numbers[1:], []):
        pattern = r"\.".join(_NUMBER if i in opened else _one_of(unfold(part)) for i, part in enumerate(own))
        for start in starts:
            entry = f"{start}{pattern}$"
            if not any(matches(entry, name) for name in near):
                return entry
    return None


def _one_of(alternatives: Iterable[str]) -> str:
    escaped = [re.escape(alternative) for alternative in alternatives]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"
