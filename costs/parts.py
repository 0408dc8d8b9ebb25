"""The parts of a model that a reader knows: routed experts, attention, head. They are data: `parts.json`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("parts.json")


@dataclass(frozen=True)
class Part:
    """A part of a model: `pattern` is matched against the whole of a folded name."""

    id: str
    name: str
    pattern: re.Pattern[str]


@cache
def parts() -> tuple[Part, ...]:
    """All parts, in the order in which a module is held against them."""
    return tuple(Part(one["id"], one["name"], re.compile(one["pattern"], re.DOTALL)) for one in _data()["parts"])


@cache
def table_order() -> dict[str, int]:
    """The place of every part in a table, by id."""
    return {name: number for number, name in enumerate(_data()["order"])}


def part_of(pattern: str) -> Part:
    """The part that the folded name `pattern` belongs to."""
    return next(part for part in parts() if part.pattern.fullmatch(pattern))


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data
