"""What is stored, gathered to the parts of a model that a reader knows, each with its form and the reason for it.

What a card says of the parts is data: `parts.json`, described by `schemas/card_parts.schema.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from checkpoint import Checkpoint
from checkpoint.families import Family
from checkpoint.folding import unfold
from costs import Sizes, table_order, total
from costs import entries as stored
from verify.engines import load_engine

DATA = Path(__file__).with_name("parts.json")
SERVING = ("vllm", "sglang")


@dataclass(frozen=True)
class Reason:
    """Why a part stays dense; `when` limits it to rows that hold a matrix of a certain kind, `families` to those of
    which it is known."""

    text: str
    evidence: tuple[str, ...] = ()
    when: str | None = None
    families: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Part:
    """What is said of a part of a model."""

    id: str
    title: str
    why_dense: tuple[Reason, ...]
    otherwise: str | None


@dataclass(frozen=True)
class Entry:
    """Modules that are stored alike: an entry of the layout document, with its part and its sizes."""

    part: Part
    pattern: str
    layout: Mapping[str, Any]
    sizes: Sizes

    @property
    def packed(self) -> bool:
        return bool(self.layout["state"] == "packed")

    @property
    def form(self) -> str:
        """`BF16`, `INT4, groups of 32`; what is irregular is said."""
        one = self.layout
        if not self.packed:
            return str(one.get("dtype", "incomplete"))
        grouping = f"groups of {one['group_size']}" if one["group_size"] else f"one scale per {one['strategy']}"
        return f"INT{one['bits'] or '?'}, {grouping}" + ("" if one["symmetric"] else ", zero points")


@dataclass(frozen=True)
class Row:
    """A part in one stored form."""

    entries: tuple[Entry, ...]

    @property
    def part(self) -> Part:
        return self.entries[0].part

    @property
    def form(self) -> str:
        return self.entries[0].form

    @property
    def packed(self) -> bool:
        return self.entries[0].packed

    @property
    def modules(self) -> int:
        return sum(int(entry.layout["count"]) for entry in self.entries)

    @property
    def sizes(self) -> Sizes:
        return total(entry.sizes for entry in self.entries)


@cache
def parts() -> tuple[Part, ...]:
    """All parts of which a card tells."""
    return tuple(_part(one) for one in _data()["parts"])


def entries(checkpoint: Checkpoint, document: Mapping[str, Any]) -> tuple[Entry, ...]:
    """Every entry of the checkpoint's layout `document`."""
    told = {part.id: part for part in parts()}
    return tuple(Entry(told[one.part.id], one.pattern, one.layout, one.sizes) for one in stored(checkpoint, document))


def rows(found: tuple[Entry, ...]) -> tuple[Row, ...]:
    """The entries by part and form, in the order of the table, what is packed before what is dense."""
    order = table_order()
    groups: dict[tuple[int, bool, str], list[Entry]] = {}
    for entry in found:
        groups.setdefault((order[entry.part.id], not entry.packed, entry.form), []).append(entry)
    return tuple(Row(tuple(groups[key])) for key in sorted(groups))


def why_dense(row: Row, family: Family | None) -> Reason | None:
    """Why the dense `row` is not packed; None where nothing is known of that.

    What is known of the part counts first, then the family's word, then that engines build it dense whatever the config
    says; what else can be said of the part is said of known families alone.
    """
    for reason in row.part.why_dense:
        if reason.families is not None and (family is None or family.name not in reason.families):
            continue
        if reason.when is None:
            return reason
        values = next(_matrices(reason.when, row), None)
        if values is not None:
            return Reason(reason.text.format(**values), reason.evidence)
    if family is None:
        return None
    name = next(iter(unfold(row.entries[0].pattern)))
    texts = (_family_reason(name, family), _engines_reason(name, family), row.part.otherwise)
    return next((Reason(one) for one in texts if one), None)


def _family_reason(name: str, family: Family) -> str | None:
    return next((never.reason for never in family.never_packed if re.fullmatch(never.pattern, name)), None)


def _engines_reason(name: str, family: Family) -> str | None:
    """Which engines build the module dense, as their own files say."""
    engines = (load_engine(one) for one in SERVING)
    dense = [one.title for one in engines if (view := one.view(family.name, "main")) and view.is_unquantized(name)]
    return f"{' and '.join(dense)} build{'s' * (len(dense) == 1)} it dense whatever the config says" if dense else None


def _matrices(when: str, row: Row) -> Iterator[dict[str, int]]:
    """The sides of each matrix of the row of which `when` holds."""
    data = _data()
    for entry in row.entries:
        shape = entry.layout.get("shape", ())
        if len(shape) != 2 or None in shape:
            continue
        height, width = shape
        undivided = all(width % group for group in data["group_sizes"])
        if undivided if when == "columns_undivided" else height < data["tile"]:
            yield {"rows": height, "columns": width}


def _part(one: Mapping[str, Any]) -> Part:
    reasons = tuple(_reason(why) for why in one.get("why_dense", ()))
    return Part(one["id"], one["title"], reasons, one.get("otherwise"))


def _reason(why: Mapping[str, Any]) -> Reason:
    families = tuple(why["families"]) if "families" in why else None
    return Reason(why["text"], tuple(why.get("evidence", ())), why.get("when"), families)


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data
