"""Tasks by several threads, a few MB at a time and in the order of the files; what comes of them in that order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType

from checkpoint import Files
from compare.judging import Found, Task, judge, nbytes_of

BATCH = 4 << 20
"""Bytes of small tasks that a thread takes on at a time."""

Advance = Callable[[str, int], None]
"""Called with (name of a weight, bytes read)."""

Batch = tuple[Sequence[Task], int]


def judged(
    files: Files, tasks: Iterable[Task], by: ModuleType, workers: int, advance: Advance
) -> Iterator[tuple[Task, Found]]:
    """Each task with what came of it. At most two batches a worker are under way or waiting."""
    pending: deque[tuple[Batch, Future[list[Found]]]] = deque()
    with ThreadPoolExecutor(workers, "ckpt-diff") as pool:
        try:
            for batch in _batches(tasks):
                if len(pending) >= 2 * workers:
                    yield from _collected(*pending.popleft(), advance)
                pending.append((batch, pool.submit(judge, files, batch[0], by)))
            while pending:
                yield from _collected(*pending.popleft(), advance)
        except BaseException:
            files.stop()
            for _, future in pending:
                future.cancel()
            raise


def _collected(batch: Batch, future: Future[list[Found]], advance: Advance) -> Iterator[tuple[Task, Found]]:
    tasks, nbytes = batch
    found = future.result()
    advance(tasks[-1].span.pair.name, nbytes)
    yield from zip(tasks, found, strict=True)


def _batches(tasks: Iterable[Task]) -> Iterator[Batch]:
    """As many tasks at a time as make up `BATCH` bytes; a larger one alone."""
    batch: list[Task] = []
    total = 0
    for task in tasks:
        nbytes = nbytes_of(task)
        if batch and total + nbytes > BATCH:
            yield batch, total
            batch, total = [], 0
        batch.append(task)
        total += nbytes
    if batch:
        yield batch, total
