"""What a command left alone: bytes it never read, files it only linked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measuring import forget, resident, run
from benchmarks.result import Figure, Series

SMALL_CHANGE = 100.0
"""MB that headers, index, samples and the interpreter itself may take, beside gigabytes of weights."""


def read_of(name: str, command: Sequence[str], paths: Sequence[Path]) -> Iterator[Figure]:
    """MB of `paths` that are in the page cache after `command`, when none was before: what it read or mapped of them.

    Nothing where that cannot be told. It counts the kernel's read-ahead, too.
    """
    forget(paths)
    if resident(paths) != 0:
        return
    run(command)
    found = resident(paths)
    if found is not None:
        yield Figure(name, found / 1e6, "MB", SMALL_CHANGE, "at most")


def read_beyond(name: str, series: Series | None, nbytes: int) -> Iterator[Figure]:
    """MB that a command read by system calls beyond `nbytes`, its interpreter and the JSON included."""
    if series is not None:
        yield Figure(name, (max(series.read) - nbytes) / 1e6, "MB", SMALL_CHANGE, "at most")


def written_beyond(name: str, series: Series | None, nbytes: int) -> Iterator[Figure]:
    """MB that a command wrote by system calls beyond `nbytes`."""
    if series is not None:
        yield Figure(name, (max(series.written) - nbytes) / 1e6, "MB", SMALL_CHANGE, "at most")


def linked(one: Path, other: Path, names: Sequence[str]) -> bool:
    """Are the files `names` of both folders one file each? Reflinks, which `ckpt` prefers where there are, are not."""
    return all((one / name).samefile(other / name) for name in names)
