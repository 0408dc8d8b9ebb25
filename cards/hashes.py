"""The files of a checkpoint with their SHA-256: small ones read, shards as the manifest knows them or on demand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cards.markers import README
from checkpoint import CONFIG, INDEX, Checkpoint, Problem, UnreadableCheckpoint
from checkpoint.folder import MANIFEST

CHUNK = 1 << 22
SMALL = 64 * 1024 * 1024
"""Bytes; a file up to this size that is no shard is always read."""

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Hashed:
    """A file, its size and its SHA-256 in hex; None where it is not known."""

    name: str
    nbytes: int
    sha256: str | None


def hash_files(
    checkpoint: Checkpoint, root: Path, known: Mapping[str, Any], *, hashing: bool, progress: Progress
) -> tuple[Hashed, ...]:
    """Every file of the folder `root` but the card itself and the manifest, which name the others.

    `known` are the manifest's entries by file; one of another size is not believed. `hashing` reads what is not known.
    Raises UnreadableCheckpoint where a file cannot be read.
    """
    try:
        return tuple(_hashed(checkpoint, root / name, name, known, hashing, progress) for name in _names(checkpoint))
    except OSError as error:
        place = Path(str(error.filename)).name if error.filename else str(root)
        raise UnreadableCheckpoint(Problem("file-unreadable", error.strerror or str(error), place)) from error


def bytes_to_hash(checkpoint: Checkpoint, root: Path) -> int:
    """At most as many bytes are read to hash all of it."""
    return sum((root / name).stat().st_size for name in _names(checkpoint))


def _names(checkpoint: Checkpoint) -> Iterator[str]:
    yield from sorted(checkpoint.shards)
    if checkpoint.index is not None:
        yield INDEX
    if checkpoint.config_document is not None:
        yield CONFIG
    yield from sorted(name for name in checkpoint.side_files if name not in (README, MANIFEST))


def _hashed(
    checkpoint: Checkpoint, path: Path, name: str, known: Mapping[str, Any], hashing: bool, progress: Progress
) -> Hashed:
    size = path.stat().st_size
    entry = known.get(name)
    told = entry.get("sha256") if isinstance(entry, Mapping) and entry.get("bytes") == size else None
    if name not in checkpoint.shards and size <= SMALL:
        return Hashed(name, size, _sha256(path, progress))
    if isinstance(told, str):
        return Hashed(name, size, told)
    return Hashed(name, size, _sha256(path, progress) if hashing else None)


def _sha256(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            progress(path.name, len(chunk))
    return digest.hexdigest()
