"""One shard while it is written: bytes land anywhere in it, and its hash follows as far as it is whole."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from threading import Condition

from checkpoint.digest import Digest, Hashing
from checkpoint.draft import Computed, Work
from checkpoint.errors import naming
from checkpoint.files import CHUNK, Files, scratch
from checkpoint.header import TensorRef
from checkpoint.linking import copy_range, unreadable, write_all
from checkpoint.places import File, RemoteFile
from checkpoint.plan import HASHING, ShardPlan

PIECE = 32 * 1024 * 1024
"""Bytes that one copy moves, and after which the kernel is told to start writing to the disk."""

OPEN = 4
"""Shards that are written, hashed or flushed side by side at most."""

HASHED = 4 * 1024 * 1024
"""Bytes by which a file grows before its hash is told to follow: to wake a thread costs the others their turn."""

_SYNC_FILE_RANGE_WRITE = 2

Range = tuple[File, int, int, int]
"""(source file, offset in it, position, bytes)."""


class ShardFile:
    """The new file `path`, of the size its plan says. Threads may write to it side by side."""

    def __init__(self, shard: ShardPlan, path: Path) -> None:
        self.shard = shard
        self._places = dict(_places(shard))
        self._outputs = {
            (id(source.work), source.output): self._places[name]
            for name, source in shard.tensors.items()
            if isinstance(source, Computed)
        }
        self._landed: dict[int, int] = {}
        self._whole = self._told = self._sum = 0
        self._abandoned = False
        self._grown = Condition()
        self._path = path
        self._handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            with naming(path):
                os.truncate(self._handle, shard.nbytes)
            self.put(shard.header, 0)
            self._put_known()
        except BaseException:
            os.close(self._handle)
            raise

    def ranges(self) -> Iterator[Range]:
        """What is taken byte for byte, neighbours joined, in pieces of at most `PIECE` bytes."""
        for source, offset, position, nbytes in _ranges(self.shard, self._places):
            for start in range(0, nbytes, PIECE):
                yield source, offset + start, position + start, min(PIECE, nbytes - start)

    def put(self, data: bytes | memoryview, position: int) -> None:
        """Write `data` at `position`."""
        with naming(self._path):
            write_all(self._handle, data, position)
        self._land(position, memoryview(data).nbytes)

    def put_output(self, work: Work, output: str, begin: int, data: memoryview) -> None:
        """Write `data` at byte `begin` of an output of `work`, if the shard holds it."""
        place = self._outputs.get((id(work), output))
        if place is None or output in work.known:
            return
        position, room = place
        if begin + data.nbytes > room:
            raise ValueError(f"{work.source.name}: {output} has {room:,} bytes, not {begin + data.nbytes:,}")
        self.put(data, position + begin)

    def copy(self, files: Files, source: File, offset: int, position: int, nbytes: int) -> int:
        """Move `nbytes` from `source` to `position`, inside the kernel where it can; returns them.

        Raises UnreadableCheckpoint.
        """
        source = files.here(source)
        if isinstance(source, RemoteFile):
            for start in range(0, nbytes, CHUNK):
                piece = scratch(min(CHUNK, nbytes - start))
                files.read_into(source, offset + start, piece)
                self.put(piece, position + start)
            return nbytes
        try:
            reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(source, error) from error
        try:
            with naming(self._path):
                copy_range(source, reader, offset, self._handle, position, nbytes)
        finally:
            os.close(reader)
        _start_writing(self._handle, position, nbytes)
        self._land(position, nbytes)
        return nbytes

    @property
    def missing(self) -> int:
        """Bytes of the plan that nobody has written."""
        with self._grown:
            return self.shard.nbytes - self._sum

    def finish(self, *, hashing: bool) -> Digest:
        """Wait until the file is whole and flush it to the disk: its hashes, none if abandoned or not asked for."""
        digest = Hashing(self._spans()) if hashing else None
        buffer = memoryview(bytearray(HASHING // OPEN))
        position = flushed = 0
        while position < self.shard.nbytes:
            whole = self._wait(position)
            if whole <= position:
                return Digest()
            while digest is not None and position < whole:
                count = os.preadv(self._handle, [buffer[: whole - position]], position)
                digest.update(buffer[:count])
                position += count
            position = whole
            if position - flushed >= PIECE:
                _start_writing(self._handle, flushed, position - flushed)
                flushed = position
        with naming(self._path):
            os.fsync(self._handle)
        return digest.result() if digest else Digest()

    def close(self) -> None:
        """To be called when nobody writes any more and `finish` has come back."""
        os.close(self._handle)

    def abandon(self) -> None:
        """Have `finish` come back at once. Nobody may write any more."""
        with self._grown:
            self._abandoned = True
            self._grown.notify_all()

    def _spans(self) -> Iterator[tuple[str, int, int]]:
        return ((name, position, position + nbytes) for name, (position, nbytes) in self._places.items())

    def _put_known(self) -> None:
        """Outputs known beforehand, neighbours in one go: they stand first in the file, and its hash waits for them."""
        start, run = 0, bytearray()
        for name, source in self.shard.tensors.items():
            if isinstance(source, Computed) and (data := source.work.known.get(source.output)) is not None:
                position = self._places[name][0]
                if position != start + len(run):
                    self.put(bytes(run), start)
                    start, run = position, bytearray()
                run += data
        self.put(bytes(run), start)

    def _land(self, position: int, nbytes: int) -> None:
        with self._grown:
            if not nbytes:
                return
            self._sum += nbytes
            self._landed[position] = position + nbytes
            while self._whole in self._landed:
                self._whole = self._landed.pop(self._whole)
            if self._whole - self._told >= HASHED or self._whole == self.shard.nbytes:
                self._told = self._whole
                self._grown.notify_all()

    def _wait(self, position: int) -> int:
        """How far the file is whole, once that is beyond `position`; not beyond it where the file was abandoned."""
        with self._grown:
            while self._told <= position and not self._abandoned:
                self._grown.wait()
            return position if self._abandoned else self._told


def _places(shard: ShardPlan) -> Iterator[tuple[str, tuple[int, int]]]:
    """Position and bytes of each tensor."""
    position = len(shard.header)
    for name, source in shard.tensors.items():
        yield name, (position, source.nbytes)
        position += source.nbytes


def _ranges(shard: ShardPlan, places: Mapping[str, tuple[int, int]]) -> Iterator[Range]:
    """(source file, offset, position, bytes) of stored tensors, neighbours joined; of the file where it moves whole."""
    if not shard.tensors and shard.source is not None:
        whole = shard.source
        yield whole.resolve() if isinstance(whole, Path) else whole, 0, 0, shard.nbytes
    pending: Range | None = None
    for name, source in shard.tensors.items():
        if not isinstance(source, TensorRef) or not source.nbytes:
            continue
        if pending:
            path, offset, position, nbytes = pending
            if path == source.path and offset + nbytes == source.offset and position + nbytes == places[name][0]:
                pending = (path, offset, position, nbytes + source.nbytes)
                continue
            yield pending
        pending = (source.path, source.offset, places[name][0], source.nbytes)
    if pending:
        yield pending


def _start_writing(handle: int, offset: int, nbytes: int) -> None:
    """Have the kernel begin to write to the disk what `fsync` will wait for; where it cannot, `fsync` does it all."""
    call = _sync_file_range()
    if call is not None:
        call(handle, ctypes.c_int64(offset), ctypes.c_int64(nbytes), _SYNC_FILE_RANGE_WRITE)


@lru_cache(maxsize=1)
def _sync_file_range() -> Callable[..., int] | None:
    """The call of that name, which Python does not offer."""
    found: Callable[..., int] | None = getattr(ctypes.CDLL(None), "sync_file_range", None)
    return found
