"""Pieces of work spread over threads, each taking the next one as it gets free, and how long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from threading import Thread

THREADS = (1, 2, 4, 8, 16)


def seconds(threads: int, pieces: int, work: Callable[[int], object], prepare: Callable[[], object] = int) -> float:
    """Wall time of `work` over `pieces` numbers; every thread calls `prepare` before the clock starts.

    Raises RuntimeError where a thread failed.
    """
    numbers = count()
    ready: list[bool] = []
    done: list[bool] = []
    start: list[float] = []

    def run() -> None:
        prepare()
        ready.append(True)
        while not start:
            time.sleep(1e-4)
        while (number := next(numbers)) < pieces:
            work(number)
        done.append(True)

    running = [Thread(target=run, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    while len(ready) < threads and all(thread.is_alive() for thread in running):
        time.sleep(1e-4)
    start.append(time.perf_counter())
    for thread in running:
        thread.join()
    taken = time.perf_counter() - start[0]
    if len(done) < threads:
        raise RuntimeError("a thread failed")
    return taken
