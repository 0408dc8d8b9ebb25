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
from typing import TYPE_CHECKING

from checkpoint.ahead import Ahead
from checkpoint.digest import Digest
from checkpoint.draft import Work
from checkpoint.errors import Problem, Refused, UnreadableCheckpoint
from checkpoint.files import Files
from checkpoint.interrupts import deferred, undisturbed
from checkpoint.journal import Journal
from checkpoint.places import RemoteFile
from checkpoint.plan import READERS, ShardPlan, works_of
from checkpoint.shardfile import OPEN, ShardFile

if TYPE_CHECKING:
    from checkpoint.remote.spool import Spool

Progress = Callable[[str, int], None]
"""Called with (shard, bytes read for it) as the work goes on; they add up to the plan's `bytes_read`."""

BATCH = 8 * 1024 * 1024
"""Bytes of blocks that a thread takes on at a time: handing over a task costs as much as packing a tenth of a block."""

Queue = deque[tuple[ShardFile | None, Future[int]]]
"""Tasks in the order in which they were begun, each with the shard it is for; they return the bytes they read."""


class Streaming:
    """The threads and open files that the shards of one plan share, and what their works have refused so far."""

    def __init__(
        self,
        files: Files,
        workers: int,
        progress: Progress,
        *,
        hashing: bool = True,
        readers: int = READERS,
        journal: Journal | None = None,
        spool: Spool | None = None,
    ) -> None:
        self._files = files
        self._workers = workers
        self._progress = progress
        self._hashing = hashing
        self._readers = readers
        self._journal = journal
        self._spool = spool
        self._copies: Queue = deque()
        self._blocks: Queue = deque()
        self._unfinished: deque[tuple[ShardFile, Future[Digest]]] = deque()
        self._digests: dict[str, Digest] = {}
        self.refusals: list[Problem] = []

    def write(self, shards: Iterable[ShardPlan], folder: Path) -> dict[str, Digest]:
        """Write `shards` to new files of `folder`; their hashes by name.

        Once a work has refused, only further refusals are looked for, and nothing that was written counts. One thread
        copies, since the kernel lets only one at a time write to a file; from the Hub several do. What the journal
        knows as finished is left as it is.
        """
        todo = [shard for shard in shards if not self._is_finished(shard)]
        copiers = self._readers if any(shard.remote for shard in todo) else 1
        with (
            ThreadPoolExecutor(self._workers, "ckpt") as pool,
            ThreadPoolExecutor(copiers, "ckpt-copy") as copier,
            ThreadPoolExecutor(self._readers, "ckpt-fetch") as fetchers,
            ThreadPoolExecutor(OPEN, "ckpt-finish") as finishers,
        ):
            try:
                for shard in todo:
                    while len(self._unfinished) >= OPEN or (self._unfinished and not self._has_room(shard)):
                        self._finish_oldest()
                    if self._spool and not self.refusals:
                        self._spool.take(shard.piecemeal)
                    with deferred():  # a file that nobody knows of would be waited for for ever
                        file = ShardFile(shard, folder / shard.name)
                        self._unfinished.append((file, finishers.submit(file.finish, hashing=self._hashing)))
                    if not self.refusals:
                        pieces = list(file.ranges())
                        self._copies += ((file, copier.submit(file.copy, self._files, *piece)) for piece in pieces)
                    self._run(pool, fetchers, works_of(shard), file)
                while self._unfinished:
                    self._finish_oldest()
            except BaseException:
                self._abandon()
                raise
        return self._digests

    def examine(self, works: Iterable[Work]) -> None:
        """Run `works` for what they refuse; their output goes nowhere."""
        with (
            ThreadPoolExecutor(self._workers, "ckpt") as pool,
            ThreadPoolExecutor(self._readers, "ckpt-fetch") as fetchers,
        ):
            try:
                self._run(pool, fetchers, works, None)
                self._drain(self._blocks, None)
            except BaseException:
                self._abandon()
                raise

    def _is_finished(self, shard: ShardPlan) -> bool:
        """Has an earlier run finished it?"""
        digest = self._journal.finished.get(shard.name) if self._journal else None
        if digest is None:
            return False
        self._digests[shard.name] = digest
        if self._spool:
            self._spool.release(shard.piecemeal)
        self._progress(shard.name, shard.bytes_read)
        return True

    def _has_room(self, shard: ShardPlan) -> bool:
        return self._spool is None or self._spool.has_room(shard.piecemeal)

    def _run(
        self, pool: ThreadPoolExecutor, fetchers: ThreadPoolExecutor, works: Iterable[Work], file: ShardFile | None
    ) -> None:
        """Have all blocks run, with at most 2 batches per worker under way or waiting; of those that are fetched from
        the Hub as many as keep its readers busy."""
        for batch in _batches(works):
            ahead = Ahead(self._files, batch)
            fetched = fetchers.submit(ahead.fetch) if ahead.is_needed else None
            if len(self._blocks) >= (self._workers + self._readers if fetched else 2 * self._workers):
                self._collect(self._blocks)
            self._blocks.append((file, pool.submit(self._run_batch, batch, file, ahead, fetched)))

    def _run_batch(
        self, batch: Sequence[tuple[Work, int]], file: ShardFile | None, ahead: Ahead, fetched: Future[None] | None
    ) -> int:
        """Bytes read. All that is refused is told together."""
        if fetched is not None:
            fetched.result()
        read = 0
        problems: list[Problem] = []
        for work, block in batch:
            try:
                read += _run_block(work, block, file, ahead)
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
        digest = self._digests[file.shard.name] = finished.result()
        if self._spool:
            self._spool.release(file.shard.piecemeal)
        if not self.refusals:
            _refuse_altered(file.shard, digest)
            if self._journal:
                self._journal.add(file.shard.name, digest)

    def _abandon(self) -> None:
        """Let what runs come to its end: nothing may write to a handle that was closed, and maybe opened again."""
        with undisturbed():
            self._files.stop()
            running = [future for _, future in (*self._copies, *self._blocks)]
            for future in running:
                future.cancel()
            wait(running)
            for file, _ in self._unfinished:
                file.abandon()
            wait([finished for _, finished in self._unfinished])
            for file, _ in self._unfinished:
                file.close()


def _refuse_altered(shard: ShardPlan, digest: Digest) -> None:
    """Raise UnreadableCheckpoint where a file that was fetched whole is not what the Hub says it is."""
    source = shard.source
    if shard.tensors or not isinstance(source, RemoteFile) or not (source.sha256 and digest.sha256):
        return
    if source.sha256 != digest.sha256:
        found = f"was sent with sha256 {digest.sha256}"
        raise UnreadableCheckpoint(Problem("hash-differs", found, str(source), None, source.sha256, "Try again"))


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


def _run_block(work: Work, block: int, file: ShardFile | None, files: Ahead) -> int:
    """Bytes read. Outputs that the shard does not hold are dropped."""
    offset, nbytes = work.span(block)
    data = work.buffer(nbytes)
    files.read_into(work.source.path, work.source.offset + offset, data)
    for output, begin, buffer in work.run(block, data):
        if file is not None:
            file.put_output(work, output, begin, buffer)
    return nbytes
