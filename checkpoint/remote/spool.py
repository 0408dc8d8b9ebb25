"""Files of the Hub that are downloaded whole for as long as they are needed, within a budget of disk.

A file comes in pieces that are fetched side by side and land in their order, so that its hash is known when it is
whole, and that a run which was cut off goes on where it was. A file is named for its hash: who finds it may use it.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from checkpoint.errors import Problem, UnreadableCheckpoint
from checkpoint.files import CHUNK, Files
from checkpoint.places import RemoteFile

AT_ONCE = 8
"""Pieces that are fetched side by side."""


class Spool:
    """A folder of downloaded files, at most `budget` bytes of them, which `files` then reads instead of the Hub.

    `uses` says for how many shards each file is needed; after the last it is removed.
    """

    def __init__(self, folder: Path, budget: int, files: Files, uses: Mapping[RemoteFile, int]) -> None:
        self._folder = folder
        self._budget = budget
        self._files = files
        self._uses = dict(uses)

    def has_room(self, wanted: Mapping[RemoteFile, int]) -> bool:
        """Would `take` fit into the budget now?"""
        new = sum(file.size for file in self._worth(wanted) if file not in self._files.local)
        return self._held + new <= self._budget

    def take(self, wanted: Mapping[RemoteFile, int]) -> None:
        """Download those of `wanted` (bytes needed of each) of which most is needed and that fit; the others are left
        to be read by range. Raises UnreadableCheckpoint, also where a file has not the hash that the Hub states."""
        for file in self._worth(wanted):
            if file not in self._files.local and self._held + file.size <= self._budget:
                self._files.local[file] = self._downloaded(file)

    def release(self, wanted: Mapping[RemoteFile, int]) -> None:
        """One shard less needs these files."""
        for file in wanted:
            self._uses[file] = self._uses.get(file, 1) - 1
            if self._uses[file] <= 0 and (path := self._files.local.pop(file, None)):
                self._files.forget(path)
                path.unlink()

    @property
    def _held(self) -> int:
        return sum(file.size for file in self._files.local)

    def _worth(self, wanted: Mapping[RemoteFile, int]) -> Iterator[RemoteFile]:
        return (file for file, nbytes in wanted.items() if 2 * nbytes > file.size and file.size <= self._budget)

    def _downloaded(self, file: RemoteFile) -> Path:
        self._folder.mkdir(0o700, exist_ok=True)
        path = self._folder / (file.sha256 or f"{file.commit}-{file.blob}")
        part = path.with_suffix(".part")
        if path.exists() and path.stat().st_size == file.size:
            return path
        with part.open("a+b") as target:
            digest = hashlib.sha256()
            target.seek(0)
            while data := target.read(CHUNK):
                digest.update(data)
            for piece in self._pieces(file, target.tell()):
                target.write(piece)
                digest.update(piece)
        if file.sha256 and digest.hexdigest() != file.sha256:
            part.unlink()
            found, expected = f"was sent with sha256 {digest.hexdigest()}", file.sha256
            raise UnreadableCheckpoint(Problem("hash-differs", found, str(file), None, expected, "Try again"))
        os.rename(part, path)
        return path

    def _pieces(self, file: RemoteFile, start: int) -> Iterator[bytearray]:
        """The bytes from `start` on, in order."""
        waiting: deque[Future[bytearray]] = deque()
        with ThreadPoolExecutor(AT_ONCE, "ckpt-download") as pool:
            try:
                for offset in range(start, file.size, CHUNK):
                    if len(waiting) == AT_ONCE:
                        yield waiting.popleft().result()
                    waiting.append(pool.submit(self._files.read, file, offset, min(CHUNK, file.size - offset)))
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
