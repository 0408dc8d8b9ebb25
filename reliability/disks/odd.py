"""File systems, paths and people that one does not expect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reliability.disks.ground import Ground
from reliability.disks.others import between, rights
from reliability.disks.outcomes import Case
from reliability.disks.paths import links, paths
from reliability.disks.systems import names, systems


def oddities(inputs: Path, room: Path) -> Iterator[Case]:
    """Every case that works on this machine."""
    ground = Ground(inputs, room)
    yield from systems(ground)
    yield from names(ground)
    yield from paths(ground)
    yield from links(ground)
    yield from rights(ground)
    yield from between(ground)
