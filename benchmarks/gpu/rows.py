"""One figure of a section, and how it travels from the section's process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

PREFIX = "ROW "


@dataclass(frozen=True)
class Row:
    """`target` is what was asked for, "" for nothing; `reached` whether it is, None where nothing was asked."""

    name: str
    value: float | str
    unit: str = ""
    target: str = ""
    reached: bool | None = None
    note: str = ""


def at_least(name: str, value: float, unit: str, target: float, note: str = "") -> Row:
    """A row with a target."""
    return Row(name, value, unit, f"at least {target:g} {unit}", value >= target, note)


def tell(rows: Iterable[Row]) -> None:
    """Print each row as soon as it is there."""
    for row in rows:
        print(PREFIX + json.dumps(asdict(row)), flush=True)


def told(output: str) -> Iterator[Row]:
    """The rows in what a section printed."""
    for line in output.splitlines():
        if line.startswith(PREFIX):
            yield Row(**json.loads(line.removeprefix(PREFIX)))
