"""The shards of a plan, written side by side in a single pass.

Blocks of work are read, computed and written at their known places by a few threads, unchanged tensors move as byte
ranges inside the kernel, and while one shard is hashed and flushed the next is computed already. Memory is bounded by
the blocks that run at once, never by shards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from checkpoint.digest import Digest
from checkpoint.draft import Work
from checkpoint.errors import Problem, Refused
from checkpoint.files import Files
from checkpoint.plan import ShardPlan, works_of
from checkpoint.shardfile import OPEN, ShardFile

Progress = Callable[[str, int], None]
"""Called with (shard, bytes read for it) as the work goes on; they add up to the plan's `bytes_read`."""

BATCH = 8 * 1024 * 1024
"""Bytes of blocks that a thread takes on at a time: handing over a task costs as much as packing a tenth of a block."""

Queue = deque[tuple[ShardFile | None, Future[int]]]
"""Tasks in the order in which they were begun, each with the shard it is for; they return the bytes they read."""


class Streaming:
    """The threads and open files that the shards of one plan share, and what their works have refused so far."""

    def __init__(self, files: Files, workers: int, progress: Progress, *, hashing: bool = True) -> None:
        self._files = files
        self._workers = workers
        self._progress = progress
        self._hashing = hashing
        self._copies: Queue = deque()
        self._blocks: Queue = deque()
        self._unfinished: deque[tuple[ShardFile, Future[Digest]]] = deque()
        self._digests: dict[str, Digest] = {}
        self.refusals: list[Problem] = []

    def write(self, shards: Iterable[ShardPlan], folder: Path) -> dict[str, Digest]:
        """Write `shards` to new files of `folder`; their hashes by name.

        Once a work has refused, only further refusals are looked for, and nothing that was written counts. One thread
        copies, since the kernel lets only one at a time write to a file.
        """
        with (
            ThreadPoolExecutor(self._workers, "ckpt") as pool,
            ThreadPoolExecutor(1, "ckpt-copy") as copier,
            ThreadPoolExecutor(OPEN, "ckpt-finish") as finishers,
        ):
            try:
                for shard in shards:
                    while len(self._unfinished) >= OPEN:
                        self._finish_oldest()
                    file = ShardFile(shard, folder / shard.name)
                    self._unfinished.append((file, finishers.submit(file.finish, hashing=self._hashing)))
                    if not self.refusals:
                        self._copies += ((file, copier.submit(file.copy, *piece)) for piece in file.ranges())
                    self._run(pool, works_of(shard), file)
                while self._unfinished:
                    self._finish_oldest()
            except BaseException:
                self._abandon()
                raise
        return self._digests

    def examine(self, works: Iterable[Work]) -> None:
        """Run `works` for what they refuse; their output goes nowhere."""
        with ThreadPoolExecutor(self._workers, "ckpt") as pool:
            try:
                self._run(pool, works, None)
                self._drain(self._blocks, None)
            except BaseException:
                self._abandon()
                raise

    def _run(self, pool: ThreadPoolExecutor, works: Iterable[Work], file: ShardFile | None) -> None:
        """Have all blocks run, with at most 2 batches per worker under way or waiting."""
        for batch in _batches(works):
            if len(self._blocks) >= 2 * self._workers:
                self._collect(self._blocks)
            self._blocks.append((file, pool.submit(self._run_batch, batch, file)))

    def _run_batch(self, batch: Sequence[tuple[Work, int]], file: ShardFile | None) -> int:
        """Bytes read. All that is refused is told together."""
        read = 0
        problems: list[Problem] = []
        for work, block in batch:
            try:
                read += _run_block(work, block, file, self._files)
            except Refused as refusal:
                problems += refusal.problems
        if problems:
            raise Refused(problems)
        return read

    def _drain(self, queue: Queue, file: ShardFile | None) -> None:
        """Collect what is left to do for `file`."""
        while any(other is file for other, _ in queue):
            self._collect(queue)

    def _collect(self, queue: Queue) -> None:
        """Wait for the oldest task of a queue."""
        file, future = queue[0]
        read = 0
        try:
            read = future.result()
        except Refused as refusal:
            self.refusals += refusal.problems
        finally:
            if future.done():
                queue.popleft()
        self._progress(file.shard.name if file else "", read)

    def _finish_oldest(self) -> None:
        """See that the shard that was begun first is whole, and close it."""
        file, finished = self._unfinished[0]
        self._drain(self._copies, file)
        self._drain(self._blocks, file)
        if self.refusals:
            file.abandon()
        elif file.missing:
            name = file.shard.name
            raise ValueError(f"{name}: its works made {file.missing:,} bytes less than its {file.shard.nbytes:,}")
        wait([finished])
        self._unfinished.popleft()
        file.close()
        self._digests[file.shard.name] = finished.result()

    def _abandon(self) -> None:
        """Let what runs come to its end: nothing may write to a handle that was closed, and maybe opened again."""
        running = [future for _, future in (*self._copies, *self._blocks)]
        for future in running:
            future.cancel()
        wait(running)
        for file, _ in self._unfinished:
            file.abandon()
        wait([finished for _, finished in self._unfinished])
        for file, _ in self._unfinished:
            file.close()


def _batches(works: Iterable[Work]) -> Iterator[list[tuple[Work, int]]]:
    """All blocks in their order, as many at a time as make up `BATCH` bytes."""
    batch: list[tuple[Work, int]] = []
    nbytes = 0
    for work in works:
        for block in range(work.blocks):
            batch.append((work, block))
            nbytes += work.span(block)[1]
            if nbytes >= BATCH:
                yield batch
                batch, nbytes = [], 0
    if batch:
        yield batch


def _run_block(work: Work, block: int, file: ShardFile | None, files: Files) -> int:
    """Bytes read. Outputs that the shard does not hold are dropped."""
    offset, nbytes = work.span(block)
    data = work.buffer(nbytes)
    files.read_into(work.source.path, work.source.offset + offset, data)
    for output, begin, buffer in work.run(block, data):
        if file is not None:
            file.put_output(work, output, begin, buffer)
    return nbytes
