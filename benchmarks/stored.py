"""Where tensors lie in safetensors files, and whether two folders hold the same: read without any library.

Slow and plain on purpose: it proves what the contenders wrote, so it shares no code with one of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 24


@dataclass(frozen=True)
class Place:
    """A tensor's dtype and shape, and where its bytes are."""

    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int


def places(folder: Path) -> dict[str, Place]:
    """Every tensor in the shards of `folder`, by name."""
    found: dict[str, Place] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            found[name] = Place(entry["dtype"], tuple(entry["shape"]), path, 8 + size + begin, end - begin)
    return found


def same(one: Path, other: Path, names: Collection[str] | None = None) -> bool:
    """Do both folders hold the tensors `names` (None: all) with equal dtypes, shapes and bytes?"""
    mine, theirs = places(one), places(other)
    if names is None and mine.keys() != theirs.keys():
        return False
    chosen = mine.keys() if names is None else names
    return all(name in mine and name in theirs and _equal(mine[name], theirs[name]) for name in chosen)


def _equal(mine: Place, theirs: Place) -> bool:
    if (mine.dtype, mine.shape, mine.nbytes) != (theirs.dtype, theirs.shape, theirs.nbytes):
        return False
    with mine.path.open("rb") as one, theirs.path.open("rb") as other:
        one.seek(mine.offset)
        other.seek(theirs.offset)
        sizes = [CHUNK] * (mine.nbytes // CHUNK) + [mine.nbytes % CHUNK]
        return all(one.read(size) == other.read(size) for size in sizes)


def flip_a_bit(place: Place) -> None:
    """Change one bit in the middle of a tensor; a second call restores it."""
    with place.path.open("r+b") as file:
        file.seek(place.offset + place.nbytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
