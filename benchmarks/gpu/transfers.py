"""Every stage beside the kernel alone: reading from the page cache and the disk, to the GPU and back, and writing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import local
from typing import TYPE_CHECKING

from benchmarks.gpu.rows import Row
from benchmarks.gpu.threads import THREADS, seconds
from benchmarks.measuring import forget

if TYPE_CHECKING:
    import torch

PIECE = 16 << 20
MEMORY = Path("/dev/shm")
"""A folder in memory, which no disk slows down."""


def measure(work: Path, *, quick: bool) -> Iterator[Row]:
    pieces = 32 if quick else 256
    path = work / "source"
    _write(path, pieces)
    yield from _reading(path, pieces)
    yield from _travelling()
    for folder, kind in ((MEMORY, "memory (tmpfs)"), (work, "the disk's page cache")):
        for threads, files in ((1, 1), (16, 1), (4, 4), (16, 16)):
            name = f"write to {kind}, {threads} threads, {files} files"
            yield Row(name, _writing(folder, pieces // 2, threads, files), "GB/s")
    path.unlink()


def buffers() -> Callable[[], memoryview]:
    """A function that gives each thread its own pinned memory of PIECE bytes."""
    import torch

    mine = local()

    def buffer() -> memoryview:
        if not hasattr(mine, "view"):
            mine.view = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True).numpy().data
        view: memoryview = mine.view
        return view

    return buffer


def _write(path: Path, pieces: int) -> None:
    """A file that is in the page cache afterwards, and on disk."""
    data = os.urandom(PIECE)
    with path.open("wb") as file:
        for _ in range(pieces):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _reading(path: Path, pieces: int) -> Iterator[Row]:
    buffer = buffers()
    handle = os.open(path, os.O_RDONLY)

    def read(number: int) -> None:
        os.preadv(handle, [buffer()], number * PIECE)

    for threads in THREADS:
        speed = pieces * PIECE / seconds(threads, pieces, read, buffer) / 1e9
        yield Row(f"read from the page cache to pinned memory, {threads} threads", speed, "GB/s")
    for threads in (1, 16):
        forget([path])
        speed = pieces * PIECE / seconds(threads, pieces, read, buffer) / 1e9
        yield Row(f"read from the disk, {threads} threads", speed, "GB/s", note="whatever caches it outside apart")
    os.close(handle)


def _travelling() -> Iterator[Row]:
    """Pinned memory to the GPU, back, and both at once."""
    import torch

    here = [torch.empty(PIECE, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    there = [torch.empty(PIECE, dtype=torch.uint8, device="cuda") for _ in range(2)]
    over, back = (there[0], here[0]), (here[1], there[1])
    yield Row("pinned memory to the GPU", _copying([over]), "GB/s")
    yield Row("GPU to pinned memory", _copying([back]), "GB/s")
    yield Row("both at once, together", _copying([over, back]), "GB/s")


def _copying(pairs: list[tuple[torch.Tensor, torch.Tensor]], repeats: int = 100) -> float:
    import time

    import torch

    streams = [torch.cuda.Stream() for _ in pairs]  # type: ignore[no-untyped-call]
    for timed in (False, True):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats if timed else 3):
            for stream, (target, source) in zip(streams, pairs, strict=True):
                with torch.cuda.stream(stream):
                    target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
    return repeats * len(pairs) * PIECE / (time.perf_counter() - begin) / 1e9


def _writing(folder: Path, pieces: int, threads: int, files: int) -> float:
    """Into new files, piece by piece in turns."""
    buffer = buffers()
    with new_files(folder, files, pieces // files * PIECE) as handles:

        def write(number: int) -> None:
            os.pwrite(handles[number % files], buffer(), number // files * PIECE)

        return pieces * PIECE / seconds(threads, pieces, write, buffer) / 1e9


@contextmanager
def new_files(folder: Path, count: int, nbytes: int) -> Iterator[list[int]]:
    """Handles of new files, which are gone afterwards."""
    paths = [folder / f"ckpt-bench-{os.getpid()}-{number}" for number in range(count)]
    handles = [os.open(path, os.O_CREAT | os.O_RDWR) for path in paths]
    try:
        for handle in handles:
            os.truncate(handle, nbytes)
        yield handles
    finally:
        for handle, path in zip(handles, paths, strict=True):
            os.close(handle)
            path.unlink()
