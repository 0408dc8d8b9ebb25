"""The shards that a run has finished, so that the same command goes on where it was cut off.

A journal belongs to one plan: its first line is the plan's fingerprint, and each further line a shard that is whole
and flushed, with its hashes. A shard counts as finished only while its file is the very one that was recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from threading import Lock
from typing import Any

from checkpoint.digest import Digest
from checkpoint.errors import naming
from checkpoint.files import is_plain_name
from checkpoint.header import TensorRef, stamp
from checkpoint.plan import Plan, ShardPlan
from checkpoint.wholefile import read_whole

MAX_JOURNAL = 512 * 1024 * 1024
"""Bytes; a million tensors with their hashes have 150 million."""


class Journal:
    """The journal at `path`, for shards in `folder`. What another plan left there does not count."""

    def __init__(self, path: Path, folder: Path, fingerprint: str) -> None:
        self._path = path
        self._folder = folder
        self._fingerprint = fingerprint
        self._lock = Lock()
        self.finished: dict[str, Digest] = dict(self._read())

    def start(self) -> None:
        """Begin the journal, or go on with that of what is finished. Raises OSError."""
        if self.finished:
            with naming(self._path), self._path.open("a") as file:
                file.write("\n")  # the last line may have been cut off
            return
        self._path.unlink(missing_ok=True)
        with naming(self._path), self._path.open("x") as file:
            file.write(json.dumps({"plan": self._fingerprint, "folder": self._folder.lstat().st_ino}) + "\n")

    @property
    def is_kept(self) -> bool:
        """Is there anything that a run can go on from?"""
        return bool(self.finished) and self._path.exists()

    def add(self, name: str, digest: Digest) -> None:
        """Record that the shard `name` is whole and flushed. Raises OSError."""
        entry = {"shard": name, "stamp": stamp((self._folder / name).stat()), **asdict(digest)}
        with self._lock, naming(self._path), self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.finished[name] = digest

    def _read(self) -> Iterator[tuple[str, Digest]]:
        try:
            lines = read_whole(self._path, MAX_JOURNAL, linked=False).decode().splitlines()
        except (OSError, UnicodeDecodeError):
            return
        entries = [entry for line in lines if (entry := _parsed(line)) is not None]
        if not entries or entries[0].get("plan") != self._fingerprint:
            return
        for entry in entries[1:]:
            try:
                name, recorded = entry["shard"], tuple(entry["stamp"])
                digest = Digest(entry["sha256"], entry["tensors"])
                if _is_sound(name, digest) and stamp((self._folder / name).stat()) == recorded:
                    yield name, digest
            except (KeyError, TypeError, OSError):
                continue


def fingerprint(plan: Plan, *, hashing: bool) -> str:
    """What tells `plan` from any other that would write other bytes: sources as they are now, places, arithmetic."""
    digest = hashlib.sha256(f"{_version()} {hashing}".encode())
    for shard in plan.shards:
        if shard.action != "linked":
            for part in _parts(shard):
                digest.update(part)
    for path in sorted({source for shard in plan.shards for source in shard.sources if isinstance(source, Path)}):
        digest.update(repr((str(path), stamp(path.stat()))).encode())
    return digest.hexdigest()


def _parts(shard: ShardPlan) -> Iterator[bytes]:
    yield repr((shard.name, str(shard.source), shard.nbytes)).encode()
    yield shard.header
    works: dict[int, str] = {}
    for source in shard.tensors.values():
        if isinstance(source, TensorRef):
            yield f"{source.path}:{source.offset}".encode()
        else:
            work = source.work
            if id(work) not in works:
                works[id(work)] = f"{work.source.path}:{work.source.offset}:{work.identity}"
            yield f"{works[id(work)]}:{source.output}".encode()


def _parsed(line: str) -> dict[str, Any] | None:
    """The entry in a line; None where it was cut off."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _is_sound(name: Any, digest: Digest) -> bool:
    """Is this what `add` writes? The journal may have come with somebody's archive."""
    words = (name, digest.sha256, *digest.tensors.values()) if isinstance(digest.tensors, dict) else (None,)
    return all(isinstance(word, str) for word in words) and is_plain_name(name)


def _version() -> str:
    try:
        return metadata.version("ckpt-surgery")
    except metadata.PackageNotFoundError:
        return "unknown"
