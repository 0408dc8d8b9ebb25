"""The shards of a plan, written side by side in a single pass.

Blocks of work are read, computed and written at their known places by a few threads, unchanged tensors move as byte
ranges inside the kernel, and while one shard is hashed and flushed the next is computed already. Memory is bounded by
the blocks that run at once, never by shards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from checkpoint.draft import Work
from checkpoint.errors import Problem, Refused
from checkpoint.files import Files
from checkpoint.plan import ShardPlan, works_of
from checkpoint.shardfile import OPEN, ShardFile

Progress = Callable[[str, int], None]
"""Called with (shard, bytes read for it) as the work goes on; they add up to the plan's `bytes_read`."""

Task = Callable[[], int]
"""Something to run on a thread; it returns the bytes that it read."""


class Streaming:
    """The threads and open files that the shards of one plan share, and what their works have refused so far."""

    def __init__(self, files: Files, workers: int, progress: Progress) -> None:
        self._files = files
        self._workers = workers
        self._progress = progress
        self._waiting: deque[tuple[ShardFile | None, Future[int] | None]] = deque()
        self._unfinished: deque[tuple[ShardFile, Future[str]]] = deque()
        self._hashes: dict[str, str] = {}
        self.refusals: list[Problem] = []

    def write(self, shards: Iterable[ShardPlan], folder: Path) -> dict[str, str]:
        """Write `shards` to new files of `folder`; their SHA-256 by name, as hexadecimal digits.

        Once a work has refused, only further refusals are looked for, and nothing that was written counts.
        """
        with ThreadPoolExecutor(self._workers, "ckpt") as pool, ThreadPoolExecutor(OPEN, "ckpt-finish") as finishers:
            try:
                for shard in shards:
                    while len(self._unfinished) >= OPEN:
                        self._finish_oldest()
                    file = ShardFile(shard, folder / shard.name)
                    self._unfinished.append((file, finishers.submit(file.finish)))
                    self._run(pool, file, self._tasks(file))
                    self._waiting.append((file, None))
                while self._unfinished:
                    self._finish_oldest()
            except BaseException:
                self._abandon()
                raise
        return self._hashes

    def examine(self, works: Iterable[Work]) -> None:
        """Run `works` for what they refuse; their output goes nowhere."""
        with ThreadPoolExecutor(self._workers, "ckpt") as pool:
            try:
                self._run(pool, None, (task for work in works for task in self._blocks(work, None)))
                while self._waiting:
                    self._collect()
            except BaseException:
                self._abandon()
                raise

    def _tasks(self, file: ShardFile) -> Iterator[Task]:
        if not self.refusals:
            for source, offset, position, nbytes in file.ranges():
                yield lambda s=source, o=offset, p=position, n=nbytes: file.copy(s, o, p, n)  # type: ignore[misc]
        for work in works_of(file.shard):
            yield from self._blocks(work, file)

    def _blocks(self, work: Work, file: ShardFile | None) -> Iterator[Task]:
        for block in range(work.blocks):
            yield lambda b=block: _run_block(work, b, file, self._files)  # type: ignore[misc]

    def _run(self, pool: ThreadPoolExecutor, file: ShardFile | None, tasks: Iterable[Task]) -> None:
        """Have all `tasks` run, with at most 2 per worker under way or waiting."""
        for task in tasks:
            while len(self._waiting) >= 2 * self._workers:
                self._collect()
            self._waiting.append((file, pool.submit(task)))

    def _collect(self) -> None:
        """Wait for the oldest task; at the end of a shard, see that it is whole."""
        file, future = self._waiting[0]
        if future is None:
            self._waiting.popleft()
            if file is not None:
                self._see_whole(file)
            return
        read = 0
        try:
            read = future.result()
        except Refused as refusal:
            self.refusals += refusal.problems
        finally:
            if future.done():
                self._waiting.popleft()
        self._progress(file.shard.name if file else "", read)

    def _see_whole(self, file: ShardFile) -> None:
        if self.refusals:
            file.abandon()
        elif file.missing:
            name = file.shard.name
            raise ValueError(f"{name}: its works made {file.missing:,} bytes less than its {file.shard.nbytes:,}")

    def _finish_oldest(self) -> None:
        file, finished = self._unfinished[0]
        while any(other is file for other, _ in self._waiting):
            self._collect()
        wait([finished])
        self._unfinished.popleft()
        file.close()
        self._hashes[file.shard.name] = finished.result()

    def _abandon(self) -> None:
        """Let what runs come to its end: a block must not write to a handle that was closed, and maybe opened again."""
        running = [future for _, future in self._waiting if future]
        for future in running:
            future.cancel()
        wait(running)
        for file, _ in self._unfinished:
            file.abandon()
        wait([finished for _, finished in self._unfinished])
        for file, _ in self._unfinished:
            file.close()


def _run_block(work: Work, block: int, file: ShardFile | None, files: Files) -> int:
    """Bytes read. Outputs that the shard does not hold are dropped."""
    offset, nbytes = work.span(block)
    data = work.buffer(nbytes)
    files.read_into(work.source.path, work.source.offset + offset, data)
    for output, begin, buffer in work.run(block, data):
        if file is not None:
            file.put_output(work, output, begin, buffer)
    return nbytes
