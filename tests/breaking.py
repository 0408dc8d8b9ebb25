"""Failures at every point where a program can fail: a call that raises, and a process that is killed in it."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

CALLS = ("pwrite", "copy_file_range", "truncate", "fsync", "link", "symlink", "mkdir", "rename", "replace")
"""What changes the disk. Calls that only remove are left out: a cleanup that fails is mended by the next run."""

FAILURES = (OSError(errno.EIO, "Input/output error"), KeyboardInterrupt())


@contextmanager
def quick_folder(otherwise: Path) -> Iterator[Path]:
    """A folder in memory, where flushing costs nothing and hundreds of failures take seconds; else `otherwise`."""
    if not os.access("/dev/shm", os.W_OK):
        yield otherwise
        return
    with TemporaryDirectory(prefix="ckpt-test-", dir="/dev/shm") as folder:
        yield Path(folder)


class Nth:
    """Stands for `os.NAME` and does `harm` instead of the n-th call; everything else is really done."""

    def __init__(self, name: str, number: int, harm: Callable[[], None]) -> None:
        self.name, self.number, self.harm = name, number, harm
        self.calls = 0
        self._real = getattr(os, name)
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **more: Any) -> Any:
        with self._lock:
            self.calls += 1
            harmful = self.calls == self.number
        if harmful:
            self.harm()
        return self._real(*args, **more)

    @property
    def struck(self) -> bool:
        return self.calls >= self.number


def each_failure(attempt: Callable[[], object]) -> Iterator[tuple[str, BaseException, BaseException | None]]:
    """Call `attempt` with each of CALLS failing at its first, second, ... call, until one is not called that often.

    Yields (call, failure, what came out: None where it succeeded) after each, the last one too.
    """
    for name in CALLS:
        for failure in FAILURES:
            for number in range(1, 1000):
                outcome, struck = _with_failure(attempt, name, number, failure)
                yield f"{name} {number}", failure, outcome
                if not struck:
                    break


def _with_failure(
    attempt: Callable[[], object], name: str, number: int, failure: BaseException
) -> tuple[BaseException | None, bool]:
    failure = type(failure)(*failure.args)  # notes that one attempt adds must not be seen on the next

    def harm() -> None:
        raise failure

    nth = Nth(name, number, harm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, nth)
        try:
            attempt()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever comes out is the result
            return error, nth.struck
    return None, nth.struck


def each_kill(
    attempt: Callable[[], object], calls: tuple[str, ...] = (*CALLS, "unlink", "rmdir")
) -> Iterator[tuple[str, bool]]:
    """Call `attempt` in processes of their own, each killed in another call, until one of each name comes through.

    Yields (where, was it killed) after each.
    """
    for name in calls:
        for number in range(1, 1000):
            killed = killed_at(attempt, name, number)
            yield f"{name} {number}", killed
            if not killed:
                break


def killed_at(attempt: Callable[[], object], name: str, number: int) -> bool:
    """Was the process killed before it had done its work?"""
    child = os.fork()
    if child == 0:
        try:
            setattr(os, name, Nth(name, number, lambda: os.kill(os.getpid(), signal.SIGKILL)))
            attempt()
        except BaseException:  # noqa: BLE001 - a child must end here, whatever happens
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, f"{name} {number}: the child failed"
    return False
