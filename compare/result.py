"""What a comparison found, as a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from compare.documents import DocumentDiff, IndexDiff, SideFile
from compare.known import Reason
from compare.measures import Sums
from compare.pairing import Pair
from compare.weights import Weight

Level = Literal["headers", "sample", "full"]

State = Literal["equal", "equal in value", "changed", "not read"]

WORST = 10
"""Weights that are named as the worst."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A weight that is on both sides. `sums` are there where it changed and could be measured, `why` says why not."""

    pair: Pair
    state: State
    kind: str | None
    sums: Sums | None = None
    why: str | None = None

    @property
    def name(self) -> str:
        return self.pair.name

    @property
    def storage(self) -> tuple[str, str]:
        """How both sides store it, shapes apart."""
        return self.pair.a.storage, self.pair.b.storage


@dataclass(frozen=True)
class Result:
    """Two checkpoints beside each other. `read` are bytes; `known` those that were known to be equal, by reason."""

    a: str
    b: str
    level: Level
    entries: tuple[Entry, ...]
    removed: tuple[Weight, ...]
    added: tuple[Weight, ...]
    side_files: tuple[SideFile, ...]
    config: DocumentDiff
    index: IndexDiff
    read: int
    known: Mapping[Reason, int]

    @cached_property
    def counts(self) -> Counter[str]:
        """Weights on both sides by state."""
        return Counter(entry.state for entry in self.entries)

    @property
    def is_different(self) -> bool:
        """Is anything not the same to the byte, as far as was read? How headers are laid out does not count."""
        states = {*self.counts, *(file.state for file in self.side_files), self.config.state, self.index.state}
        recast = any(entry.state == "not read" and not entry.pair.is_same_form for entry in self.entries)
        return bool(self.added or self.removed or recast or states - {"equal", "not read", "absent"})

    @cached_property
    def measured(self) -> tuple[Entry, ...]:
        """What changed and could be measured, the largest relative error first."""
        found = [entry for entry in self.entries if entry.state == "changed" and entry.sums is not None]
        return tuple(sorted(found, key=lambda entry: (-(entry.sums or Sums()).relative, entry.name)))

    @property
    def worst(self) -> tuple[Entry, ...]:
        return self.measured[:WORST]

    @cached_property
    def unmeasured(self) -> tuple[Entry, ...]:
        """What changed and could not be measured."""
        return tuple(entry for entry in self.entries if entry.state == "changed" and entry.sums is None)

    @cached_property
    def total(self) -> Sums | None:
        """All that changed and was measured, together."""
        return sum((entry.sums for entry in self.measured if entry.sums), Sums()) if self.measured else None
