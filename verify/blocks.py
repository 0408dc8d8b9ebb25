"""Reading tensors a block of rows at a time, for a few threads at once, in memory that no tensor's size decides."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from checkpoint import TensorRef
from verify.case import Case

if TYPE_CHECKING:
    from verify.arithmetic import Bytes

Job = TypeVar("Job")
Result = TypeVar("Result")

ELEMENTS = 1 << 18
"""Weights in a block: its temporaries stay in a core's cache, which is several times faster than memory."""

CHUNK = 1 << 22
"""Bytes in a chunk where nothing is computed."""

ROWS = 8
"""Rows of a block are a multiple of this, so that packed zero points of 4 and 8 bits divide into blocks, too."""

SAMPLES = 4
"""Tensors of a folded family that `--level sample` looks at."""

BATCHES = 256
"""Batches of jobs that a thread takes at least, so that all are done at about the same time."""

MOST_OF_A_BATCH = 16
"""Jobs in a batch: handing one over takes a thread longer than a look at a small tensor."""

SMALL = 1 << 18
"""Bytes of a job below which threads would wait for each other longer than they work."""

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def sampled(case: Case, names: Sequence[str]) -> list[str]:
    """All names at level `full`; else the first, the last and a few between of those that differ in numbers only."""
    if case.level == "full":
        return list(names)
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(NUMBER.sub("#", name), []).append(name)
    return [name for family in families.values() for name in _spread(family)]


def _spread(names: list[str]) -> list[str]:
    if len(names) <= SAMPLES:
        return names
    return [names[position * (len(names) - 1) // (SAMPLES - 1)] for position in range(SAMPLES)]


def row_blocks(case: Case, rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """(first row, end row) of each block of a matrix; at level `sample` of the first block only."""
    height = max(ROWS, ELEMENTS // max(columns, 1) // ROWS * ROWS)
    for start in range(0, rows, height):
        yield start, min(start + height, rows)
        if case.level != "full":
            return


def chunks(case: Case, nbytes: int) -> Iterator[tuple[int, int]]:
    """(first byte, end byte) of each chunk of a tensor; at level `sample` of the first one only."""
    for start in range(0, nbytes, CHUNK):
        yield start, min(start + CHUNK, nbytes)
        if case.level != "full":
            return


def read_bytes(case: Case, ref: TensorRef, start: int, end: int) -> Bytes:
    """Bytes [start, end) of a tensor."""
    import numpy as np

    buffer = np.empty(end - start, np.uint8)
    case.files.read_into(ref.path, ref.offset + start, buffer.data)
    return buffer


def read_rows(case: Case, ref: TensorRef, start: int, end: int) -> Bytes:
    """Rows [start, end) of a matrix as bytes [rows, bytes of a row]."""
    width = ref.nbytes // ref.shape[0] if ref.shape[0] else 0
    return read_bytes(case, ref, start * width, end * width).reshape(end - start, width)


def total_bytes(refs: Iterable[TensorRef]) -> int:
    """Bytes of the tensors together."""
    return sum(ref.nbytes for ref in refs)


def each(case: Case, what: str, jobs: Sequence[Job], work: Callable[[Job], Result], nbytes: int) -> Iterator[Result]:
    """`work` over `jobs`, which read about `nbytes` in all, in order; progress is reported under `what`."""
    if nbytes < SMALL * len(jobs):
        yield from _reported(case, what, ([work(job)] for job in jobs), len(jobs))
        return
    size = min(MOST_OF_A_BATCH, 1 + len(jobs) // (BATCHES * case.workers))
    batches = [jobs[start : start + size] for start in range(0, len(jobs), size)]
    with ThreadPoolExecutor(case.workers) as pool:
        yield from _reported(case, what, pool.map(lambda batch: list(map(work, batch)), batches), len(jobs))


def _reported(case: Case, what: str, batches: Iterable[list[Result]], total: int) -> Iterator[Result]:
    done = 0
    for results in batches:
        done += len(results)
        case.progress(what, done, total)
        yield from results
