"""The files of a folder that make the published checkpoint, as they were when it was judged."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoint import CONFIG, INDEX, Checkpoint, Problem, Refused, UnreadableCheckpoint
from checkpoint.files import CHUNK
from checkpoint.folder import RECORDS
from checkpoint.header import stamp

KEPT_IN_GIT = 10 * 1024 * 1024
"""Bytes; the Hub takes no larger file into git itself. Up to here a file is sent from memory: as it was hashed."""

AT_ONCE = 4
"""Files that are hashed side by side."""

LEFTOVERS = (".pyc", ".tmp", ".part", ".incomplete", ".lock", ".orig", "~")
"""How files end that tools leave behind."""

Stamp = tuple[int, int, int, int]
Advance = Callable[[str, int], None]


@dataclass(frozen=True)
class Item:
    """A file of the checkpoint. `content` is there for small ones, `stamp` for those that lie in the folder; the
    hashes once they were computed: SHA-256, and for small ones the name that git gives to the content."""

    name: str
    size: int
    path: Path | None = None
    stamp: Stamp | None = None
    sha256: str | None = None
    blob: str | None = None
    content: bytes | None = None


def item_of(name: str, content: bytes) -> Item:
    """A file that is made for the upload."""
    return Item(name, len(content), None, None, hashlib.sha256(content).hexdigest(), git_blob(content), content)


@dataclass(frozen=True)
class Published:
    """What is published of a checkpoint, and the names of what is not."""

    checkpoint: Checkpoint
    items: tuple[Item, ...]
    unsent: tuple[str, ...]


def contents(checkpoint: Checkpoint, root: Path) -> Published:
    """What is published of `checkpoint`, which lies in `root`: shards, index, config, side files; and what is not.

    Not published are dot files, what tools left behind, shards that the index does not name, and what is no regular
    file of the folder.
    """
    documents = {INDEX: checkpoint.index, CONFIG: checkpoint.config_document}
    judged = {name: document.text.encode() for name, document in documents.items() if document}
    side = list(checkpoint.side_files)
    items = []
    for name in sorted([*checkpoint.shards, *judged, *(name for name in side if not _is_leftover(name))]):
        found = (root / name).stat()
        before = checkpoint.shards[name].stamp if name in checkpoint.shards else None
        item = item_of(name, judged[name]) if name in judged else Item(name, found.st_size)
        items.append(replace(item, path=root / name, stamp=before or stamp(found)))
    others = {*_top_files(root), *side} - {item.name for item in items} - RECORDS
    return Published(checkpoint, tuple(items), tuple(sorted(others)))


def hashed(items: Iterable[Item], advance: Advance) -> list[Item]:
    """The items with their hashes, small ones with their content. Refuses files that are no longer as they were."""
    try:
        with ThreadPoolExecutor(AT_ONCE, "ckpt-hash") as pool:
            found = list(pool.map(lambda item: _hashed(item, advance), items))
    except OSError as error:
        problem = Problem("file-unreadable", error.strerror or str(error), str(error.filename))
        raise UnreadableCheckpoint(problem) from error
    check_unchanged(found)
    return found


def check_unchanged(items: Iterable[Item]) -> None:
    """Refuse, all of them at once, files that were written or replaced since they were judged."""
    problems = [
        Problem("file-changed", "changed since it was judged", item.name, remedy="Run the command again")
        for item in items
        if item.path is not None and item.stamp != _stamp(item.path)
    ]
    if problems:
        raise Refused(problems, "refused, nothing was published")


def git_blob(content: bytes) -> str:
    """The name that git gives to a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _hashed(item: Item, advance: Advance) -> Item:
    if item.path is None or item.sha256 is not None:
        return item
    if item.size <= KEPT_IN_GIT:
        content = item.path.read_bytes()
        advance(item.name, len(content))
        return replace(item_of(item.name, content), path=item.path, stamp=item.stamp)
    digest = hashlib.sha256()
    for data in _chunks(item.path):
        digest.update(data)
        advance(item.name, len(data))
    return replace(item, sha256=digest.hexdigest())


def _chunks(path: Path) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield buffer[:count]


def _stamp(path: Path) -> Stamp | None:
    try:
        return stamp(path.stat())
    except OSError:
        return None


def _is_leftover(name: str) -> bool:
    parts = name.split("/")
    return any(part.startswith(".") or part == "__pycache__" for part in parts) or name.endswith(LEFTOVERS)


def _top_files(root: Path) -> list[str]:
    return [entry.name for entry in os.scandir(root) if not entry.is_dir()]
