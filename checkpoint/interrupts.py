"""Stretches that SIGINT and SIGTERM do not cut in two. In other threads than the main one they never do."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred() -> Iterator[None]:
    """A signal that comes meanwhile takes its course at the end."""
    came: list[int] = []
    with _noting(came):
        yield
    if came:
        signal.raise_signal(came[0])


@contextmanager
def undisturbed() -> Iterator[None]:
    """A signal that comes meanwhile is dropped: for the cleanup of a run that is ending anyway."""
    with _noting([]):
        yield


@contextmanager
def _noting(came: list[int]) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    if threading.current_thread() is not threading.main_thread() or None in before.values():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    try:
        for number in SIGNALS:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
