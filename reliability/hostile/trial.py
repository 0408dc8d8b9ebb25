"""A trial, and what came of many: a row of the result.

`survived` are the trials after which nothing was read, written, run or shown that should not have been, within the time
and the memory that the trial has; `findings` names the others.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from checkpoint import CkptError, Problem
from reliability.fuzzing.target import MEMORY_FILES, Wrong
from reliability.rows import Row

SECONDS = 60
"""A trial that takes longer hangs, unless it has a limit of its own."""


@dataclass(frozen=True)
class Trial:
    """`run` gets an empty folder and raises Wrong, or anything else, where harm was done; it hangs after `seconds`, or
    the usual number of them."""

    name: str
    run: Callable[[Path], None]
    seconds: int | None = None


def row(what: str, trials: Iterable[Trial], note: str = "") -> Row:
    """Run all of them, each in a folder of its own."""
    tried, findings = 0, []
    for trial in trials:
        tried += 1
        try:
            carried_out(trial)
        except Exception as error:  # noqa: BLE001  whatever comes out of a trial is what it found
            findings.append(f"{trial.name}: {type(error).__name__}: {error}"[:300])
    return Row(what, tried, tried - len(findings), note, tuple(findings))


def carried_out(trial: Trial) -> None:
    """Run one trial. Raises Wrong where it hangs, too."""
    home = MEMORY_FILES if MEMORY_FILES.is_dir() else None
    with TemporaryDirectory(prefix="ckpt-hostile-", dir=home) as folder, deadline(trial.seconds or SECONDS):
        trial.run(Path(folder))


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """Raise Wrong after so many seconds; a call that waits for a pipe is interrupted, too."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Wrong(f"hangs: not done in {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refusals(act: Callable[[], Any]) -> tuple[Problem, ...]:
    """The problems that `act` is refused for; none where it is not."""
    try:
        act()
    except CkptError as error:
        return error.problems
    return ()
