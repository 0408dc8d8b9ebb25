"""One shard from its plan, in a single pass.

The header comes from the plan, unchanged tensors move as byte ranges inside the kernel, and blocks of work are read,
computed and written at their known places by a few threads, so memory is bounded by blocks, never by shards.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from checkpoint.draft import Computed, Work
from checkpoint.errors import Problem, Refused, UnreadableCheckpoint
from checkpoint.files import Files
from checkpoint.header import TensorRef
from checkpoint.linking import copy_range, write_all
from checkpoint.plan import ShardPlan, works_of

Progress = Callable[[str, int], None]
"""Called with (shard, bytes read for it) as the work goes on; they add up to the plan's `bytes_read`."""

Places = dict[str, tuple[int, int]]
"""Position in the file and bytes, by tensor or output."""


class Streaming:
    """The threads and open files that the shards of one plan share, and what their works have refused so far."""

    def __init__(self, files: Files, pool: ThreadPoolExecutor, workers: int, progress: Progress) -> None:
        self._files = files
        self._pool = pool
        self._ahead = 2 * workers
        self._progress = progress
        self.refusals: list[Problem] = []

    def write(self, shard: ShardPlan, path: Path) -> None:
        """Write `shard` to the new file `path`. Once a work has refused, only further refusals are looked for."""
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            os.truncate(handle, shard.nbytes)
            write_all(handle, shard.header, 0)
            places = dict(_places(shard))
            if not self.refusals:
                for source, offset, position, nbytes in _ranges(shard, places):
                    _copy_stored(source, offset, handle, position, nbytes)
                    self._progress(shard.name, nbytes)
            self._run_works(shard, places, handle)
            os.fsync(handle)
        finally:
            os.close(handle)

    def examine(self, works: Iterable[Work]) -> None:
        """Run `works` for what they refuse; their output goes nowhere."""
        self._run_blocks("", ((work, {}) for work in works), -1)

    def _run_works(self, shard: ShardPlan, places: Places, handle: int) -> None:
        targets = _targets(shard, places)
        written = self._run_blocks(shard.name, ((work, targets[id(work)]) for work in works_of(shard)), handle)
        due = sum(nbytes for outputs in targets.values() for _, nbytes in outputs.values())
        if written != due and not self.refusals:
            raise ValueError(f"{shard.name}: its works made {written:,} bytes of {due:,}")

    def _run_blocks(self, shard: str, works: Iterable[tuple[Work, Places]], handle: int) -> int:
        """Run all blocks, with at most 2 per worker under way or waiting, so that buffers stay few; bytes written."""
        waiting: deque[Future[tuple[int, int]]] = deque()
        written = 0
        try:
            for work, targets in works:
                for block in range(work.blocks):
                    if len(waiting) >= self._ahead:
                        written += self._collect(shard, waiting)
                    waiting.append(self._pool.submit(_run_block, work, block, targets, handle, self._files))
            while waiting:
                written += self._collect(shard, waiting)
        except BaseException:
            for future in waiting:
                future.cancel()
            wait(waiting)  # a running block must not write to a handle that was closed, and maybe opened for another
            raise
        return written

    def _collect(self, shard: str, waiting: deque[Future[tuple[int, int]]]) -> int:
        """Bytes written by the oldest block, which is waited for."""
        try:
            read, written = waiting[0].result()
        except Refused as refusal:
            self.refusals += refusal.problems
            return 0
        finally:
            if waiting[0].done():
                waiting.popleft()
        self._progress(shard, read)
        return written


def _places(shard: ShardPlan) -> Iterator[tuple[str, tuple[int, int]]]:
    position = len(shard.header)
    for name, source in shard.tensors.items():
        yield name, (position, source.nbytes)
        position += source.nbytes


def _ranges(shard: ShardPlan, places: Places) -> Iterator[tuple[Path, int, int, int]]:
    """(source file, offset, position, bytes) of stored tensors, neighbours joined."""
    pending: tuple[Path, int, int, int] | None = None
    for name, source in shard.tensors.items():
        if not isinstance(source, TensorRef) or not source.nbytes:
            continue
        ref = source
        if pending:
            path, offset, position, nbytes = pending
            if path == ref.path and offset + nbytes == ref.offset and position + nbytes == places[name][0]:
                pending = (path, offset, position, nbytes + ref.nbytes)
                continue
            yield pending
        pending = (ref.path, ref.offset, places[name][0], ref.nbytes)
    if pending:
        yield pending


def _copy_stored(path: Path, offset: int, target: int, position: int, nbytes: int) -> None:
    try:
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableCheckpoint(Problem("file-unreadable", error.strerror or str(error), str(path))) from error
    try:
        copy_range(source, offset, target, position, nbytes)
    finally:
        os.close(source)


def _targets(shard: ShardPlan, places: Places) -> dict[int, Places]:
    """By work: where each of its outputs goes that this shard holds."""
    targets: dict[int, Places] = {}
    for name, source in shard.tensors.items():
        if isinstance(source, Computed):
            targets.setdefault(id(source.work), {})[source.output] = places[name]
    return targets


def _run_block(work: Work, block: int, targets: Places, handle: int, files: Files) -> tuple[int, int]:
    """Bytes read and written. Outputs that the shard does not hold are dropped."""
    offset, nbytes = work.span(block)
    data = files.read(work.source.path, work.source.offset + offset, nbytes)
    written = 0
    for output, begin, buffer in work.run(block, memoryview(data)):
        if output not in targets:
            continue
        position, room = targets[output]
        if begin + buffer.nbytes > room:
            raise ValueError(f"{work.source.name}: {output} has {room:,} bytes, not {begin + buffer.nbytes:,}")
        write_all(handle, buffer, position + begin)
        written += buffer.nbytes
    return nbytes, written
