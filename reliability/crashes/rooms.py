"""A folder with all that a run reads and writes, taken down before and after, and held against each other."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A file, folder or link: `content` is a file's bytes or a link's target; `identity` inode and time of change."""

    mode: int
    content: bytes
    identity: tuple[int, int]

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def told(self) -> tuple[int, bytes]:
        """What a reader can tell it from another by."""
        return self.mode, self.content


Room = Mapping[str, Entry]
"""Everything by relative name."""


def is_leftover(name: str) -> bool:
    """Is it what a run of this project keeps beside its target while it works?"""
    return any(part.startswith(".") and ".ckpt-" in part for part in name.split("/"))


def taken(root: Path) -> Room:
    """Everything in `root`."""
    return dict(_walk(root, root))


def _walk(folder: Path, root: Path) -> Iterator[tuple[str, Entry]]:
    for entry in sorted(os.scandir(folder), key=lambda one: one.name):
        found = entry.stat(follow_symlinks=False)
        path = Path(entry.path)
        identity = (found.st_ino, found.st_mtime_ns)
        name = str(path.relative_to(root))
        if entry.is_symlink():
            yield name, Entry(found.st_mode, os.fsencode(os.readlink(path)), identity)
        elif entry.is_dir():
            yield name, Entry(found.st_mode, b"", identity)
            yield from _walk(path, root)
        else:
            yield name, Entry(found.st_mode, path.read_bytes(), identity)


def without_leftovers(room: Room) -> Room:
    return {name: entry for name, entry in room.items() if not is_leftover(name)}


def leftovers(room: Room) -> list[str]:
    return sorted({name for name in room if is_leftover(name) and not is_leftover(os.path.dirname(name))})


def same(one: Room, other: Room) -> bool:
    """Would a reader find the same in both?"""
    return {name: entry.told for name, entry in one.items()} == {name: entry.told for name, entry in other.items()}


def differing(one: Room, other: Room) -> list[str]:
    """Names of what a reader would find other in one than in the other."""
    names = sorted(one.keys() | other.keys())
    return [name for name in names if (one.get(name) and one[name].told) != (other.get(name) and other[name].told)]


def touched(before: Room, now: Room, besides: str) -> list[str]:
    """Files outside the folder `besides` that are no longer the very files they were; folders where they were."""
    kept = [name for name in before if name != besides and not name.startswith(f"{besides}/")]
    return [name for name in kept if name not in now or not _is_untouched(before[name], now[name])]


def _is_untouched(before: Entry, now: Entry) -> bool:
    return before == now


def copied(source: Path, target: Path) -> Path:
    """A copy of a room, times and modes too, in place of what stood at `target`."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
    return target


def finished_shards(room: Path, target: Path) -> dict[str, tuple[int, int]]:
    """Identities, by name, of the shards that the journal beside `target` has, and that are the files it means."""
    journal = room / f".{target.name}.ckpt-journal"
    staged = room / f".{target.name}.ckpt-new"
    found = {}
    for line in _lines(journal):
        path = staged / str(line.get("shard"))
        if "shard" in line and path.is_file():
            seen = path.stat()
            if [seen.st_ino, seen.st_size, seen.st_mtime_ns] == line["stamp"][1:4]:
                found[path.name] = (seen.st_ino, seen.st_mtime_ns)
    return found


def _lines(journal: Path) -> Iterable[dict[str, Any]]:
    try:
        lines = journal.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry
