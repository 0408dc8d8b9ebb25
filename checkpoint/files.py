"""Bounded, positioned reading of many files, here or on the Hub, and the rule for names a checkpoint may give us."""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from threading import Lock, local
from types import TracebackType
from typing import TYPE_CHECKING

from checkpoint.errors import Problem, UnreadableCheckpoint
from checkpoint.header import TensorRef
from checkpoint.places import File, RemoteFile

if TYPE_CHECKING:
    from checkpoint.remote.ranges import Ranges

CHUNK = 8 * 1024 * 1024
"""Bytes moved at a time where nothing else bounds a transfer."""


LONGEST_NAME = 255
"""Bytes of a file name, on every file system in use."""


def is_plain_name(name: str) -> bool:
    """May `name`, taken from an index, be joined to a folder? Only a plain, printable, visible file name may."""
    if not name or name.startswith(".") or not name.isprintable() or set(name) & set('/\\:*?"<>|'):
        return False
    return len(name.encode()) <= LONGEST_NAME


def stays_inside(path: Path, root: Path) -> bool:
    """Does `path`, links followed, end in `root`, or in the blob store of the Hub cache `root` is a snapshot of?"""
    try:
        real, home = path.resolve(), root.resolve()
    except (OSError, RuntimeError):  # a loop of links, which is an OSError from Python 3.13 on
        return False
    if real.is_relative_to(home):
        return True
    return home.parent.name == "snapshots" and real.is_relative_to(home.parent.parent / "blobs")


_thread = local()


def scratch(nbytes: int) -> memoryview:
    """Memory of the calling thread, which its next call hands out again: fresh memory costs a page fault each 4 KiB."""
    buffer: memoryview | None = getattr(_thread, "buffer", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = _thread.buffer = memoryview(bytearray(nbytes))
    return buffer[:nbytes]


class Files:
    """Open files by path, at most `limit` at a time, nor an eighth of what this process may open. Safe to share between
    threads; a context manager.

    `local` is where files of the Hub lie that were downloaded; the others are read by range.
    """

    def __init__(self, limit: int = 64) -> None:
        self.local: dict[RemoteFile, Path] = {}
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._limit = limit if allowed < 0 else max(1, min(limit, allowed // 8))
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._lock = Lock()

    def __enter__(self) -> Files:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            while self._open:
                os.close(self._open.popitem()[1])

    def here(self, file: File) -> File:
        """`file`, or where it was downloaded to."""
        return self.local.get(file, file) if isinstance(file, RemoteFile) else file

    @cached_property
    def _ranges(self) -> Ranges:
        from checkpoint.remote.ranges import Ranges

        return Ranges()

    def stop(self) -> None:
        """Have what is read from the Hub end in an error soon."""
        self._ranges.stop()

    def forget(self, path: Path) -> None:
        """Close `path`, which is about to be removed."""
        with self._lock:
            if (handle := self._open.pop(path, None)) is not None:
                os.close(handle)

    def read_into(self, file: File, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `file` at `offset`. Raises UnreadableCheckpoint where the file ends early or fails."""
        path = self.here(file)
        if isinstance(path, RemoteFile):
            self._ranges.read_into(path, offset, buffer)
            return
        position, end = 0, len(buffer)
        with self._borrow(path) as handle:
            while position < end:
                try:
                    count = os.preadv(handle, [buffer[position:]], offset + position)
                except OSError as error:
                    problem = Problem("file-unreadable", error.strerror or str(error), str(path))
                    raise UnreadableCheckpoint(problem) from error
                if count == 0:
                    found = f"ends at byte {offset + position:,}"
                    raise UnreadableCheckpoint(Problem("truncated", found, str(path), expected=f"{offset + end:,}"))
                position += count

    def read(self, file: File, offset: int, nbytes: int) -> bytearray:
        """`nbytes` bytes of `file` at `offset`."""
        buffer = bytearray(nbytes)
        self.read_into(file, offset, memoryview(buffer))
        return buffer

    def read_tensor(self, ref: TensorRef) -> bytearray:
        """All bytes of a tensor."""
        return self.read(ref.path, ref.offset, ref.nbytes)

    def _borrow(self, path: Path) -> _Loan:
        """A duplicate of the open handle, so that eviction by another thread cannot close it under the reader."""
        try:
            with self._lock:
                handle = self._open.pop(path, None)
                if handle is None:
                    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._open[path] = handle
                while len(self._open) > self._limit:
                    os.close(self._open.popitem(last=False)[1])
                return _Loan(os.dup(handle))
        except OSError as error:
            problem = Problem("file-unreadable", error.strerror or str(error), str(path))
            raise UnreadableCheckpoint(problem) from error


class _Loan:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __enter__(self) -> int:
        return self._handle

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._handle)
