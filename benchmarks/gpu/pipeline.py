"""All stages together: from the page cache through the GPU to a file, by threads that each do a block at a time.

The reading and writing of a plan, and nothing of its bookkeeping: what the GPU path can reach at best.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from benchmarks.gpu.rows import Row, at_least
from benchmarks.gpu.threads import THREADS, seconds
from benchmarks.gpu.transfers import MEMORY, new_files
from benchmarks.weights import fill
from surgery.blocks import CPU, Packer
from surgery.scheme import Scheme

COLUMNS = 2048
SCHEME = Scheme(4, 32)
TARGET = 20
"""GB/s of BF16 that go in."""

REPEATS = 2
FILES = 8
"""What is written is spread over so many files, as over shards: a file takes one write at a time."""

POWERS = (20, 21, 22, 23, 24)
"""Of two: elements of a block. An expert of Qwen3.6-35B-A3B has 2^20."""


@dataclass(frozen=True)
class Job:
    """Rows of BF16 in `source` (None: what was read last), to `targets` in turns (none: nowhere), `block` at a time."""

    source: int | None
    targets: Sequence[int]
    rows: int
    block: int

    @property
    def blocks(self) -> int:
        return self.rows // self.block

    def run(self, packer: Packer, number: int) -> None:
        """Read, pack and write one block: words to their place, scales behind all words."""
        nbytes = self.block * COLUMNS * 2
        data = packer.buffer(nbytes)
        if self.source is not None:
            os.preadv(self.source, [data], number * nbytes)
        found = packer.pack(data, COLUMNS, "BF16", SCHEME, "fp32")
        if self.targets:
            target, place = self.targets[number % FILES], number // FILES
            os.pwrite(target, found.packed, place * found.packed.nbytes)
            os.pwrite(target, found.scale, self.rows * COLUMNS // 2 // FILES + place * found.scale.nbytes)


def measure(work: Path, *, quick: bool) -> Iterator[Row]:
    """Threads and block sizes to nowhere, then the best of them to memory and to the disk; the CPU beside."""
    from surgery.cuda import Cuda

    cuda, rows = Cuda(), 1 << (17 if quick else 20)
    source = _source(work, rows)
    yield from _without_reading(cuda, source, rows)
    best: tuple[float, int, int] = (0, 0, 0)
    for power in POWERS:
        for threads in THREADS:
            speed = _speed(cuda, Job(source, (), rows, (1 << power) // COLUMNS), threads)
            best = max(best, (speed, power, threads))
            yield Row(f"page cache, GPU, nowhere: blocks of 2^{power}, {threads} threads", speed, "GB/s")
    _, power, threads = best
    yield at_least("page cache, GPU, nowhere: the best", best[0], "GB/s", TARGET, f"2^{power}, {threads} threads")
    for folder, kind in ((MEMORY, "memory (tmpfs)"), (work, "the disk's page cache")):
        speeds = [(_to(folder, cuda, source, rows, power, threads), threads) for threads in THREADS]
        for speed, threads in speeds:
            yield Row(f"page cache, GPU, {kind}: blocks of 2^{power}, {threads} threads", speed, "GB/s")
        yield at_least(f"page cache, GPU, {kind}: the best", max(speeds)[0], "GB/s", TARGET)
    for threads in (1, 8, 16):
        yield Row(
            f"page cache, CPU, nowhere: {threads} threads",
            _speed(CPU, Job(source, (), rows // 4, (1 << 20) // COLUMNS), threads),
            "GB/s",
        )
        speed = _to(MEMORY, CPU, source, rows // 4, 20, threads)
        yield Row(f"page cache, CPU, memory (tmpfs): {threads} threads", speed, "GB/s")


def _without_reading(cuda: Packer, source: int, rows: int) -> Iterator[Row]:
    """To the GPU, through the kernel and back."""
    speeds = []
    for power, threads in product((20, 22, 24), (1, 2, 4, 8)):
        job = Job(None, (), rows, (1 << power) // COLUMNS)
        speeds.append(_speed(cuda, job, threads, replace(job, source=source)))
        yield Row(f"pinned memory, GPU, pinned memory: blocks of 2^{power}, {threads} threads", speeds[-1], "GB/s")
    yield at_least("pinned memory, GPU, pinned memory: the best", max(speeds), "GB/s", TARGET)


def _source(work: Path, rows: int) -> int:
    """An open file of random weights, one part of it over and over."""
    part = work / "part"
    part.touch()
    fill(part, 0, (rows // 16) * COLUMNS * 2, seed=0)
    data = part.read_bytes()
    with (work / "weights").open("wb") as file:
        for _ in range(16):
            file.write(data)
    return os.open(work / "weights", os.O_RDONLY)


def _to(folder: Path, packer: Packer, source: int, rows: int, power: int, threads: int) -> float:
    """To new files in `folder`, once: the second time they would have their pages already."""
    nbytes = (rows * COLUMNS // 2 + rows * COLUMNS // 16) // FILES
    with new_files(folder, FILES, nbytes) as targets:
        return _speed(packer, Job(source, targets, rows, (1 << power) // COLUMNS), threads, repeats=1)


def _speed(packer: Packer, job: Job, threads: int, first: Job | None = None, repeats: int = REPEATS) -> float:
    """GB/s that go in, of the fastest run; each thread does block 0 of `first` twice before the clock starts."""

    def prepare() -> None:
        for _ in range(2):
            (first or job).run(packer, 0)

    nbytes = job.rows * COLUMNS * 2
    taken = [seconds(threads, job.blocks, lambda number: job.run(packer, number), prepare) for _ in range(repeats)]
    return nbytes / min(taken) / 1e9
