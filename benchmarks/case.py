"""What a case is, and what every case needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import Contender, in_turns, shell
from benchmarks.result import CaseResult, Figure, Scope, Sense, Series, series_of


@dataclass(frozen=True)
class Setting:
    """How to run: `work` is an empty folder, `disk` the bytes a case may use there; `quick` asks for tiny inputs."""

    work: Path
    repeats: int
    disk: int
    quick: bool = False


@dataclass(frozen=True)
class Case:
    """`disk` is the bytes that `measure` needs at its peak, by whether it is quick."""

    name: str
    title: str
    disk: Callable[[bool], int]
    measure: Callable[[Setting], CaseResult]


@dataclass(frozen=True)
class Found:
    """The timings of a case, and what failed among its peers."""

    series: tuple[Series, ...]
    failed: tuple[str, ...]

    def of(self, name: str, scope: Scope = "process") -> Series | None:
        """The timings of one contender, None where it did not run."""
        return next((one for one in self.series if (one.name, one.scope) == (name, scope)), None)


def compare(contenders: Sequence[Contender], setting: Setting, inputs: Sequence[Path] = ()) -> Found:
    """Time the contenders in turns."""
    runs, failed = in_turns(contenders, setting.repeats, inputs)
    return Found(series_of(contenders, runs, setting.work), tuple(failed))


def ratio(
    name: str, above: Series | None, below: Series | None, target: float | None = None, sense: Sense = "at least"
) -> list[Figure]:
    """`above` / `below` by medians; nothing where one of them did not run."""
    if above is None or below is None:
        return []
    value, by_minima = above.median / below.median, above.minimum / below.minimum
    return [Figure(name, value, "x", target, sense, by_minima)]


def seconds(series: Series | None, target: float) -> list[Figure]:
    """The median of a command's timings, which has to stay below `target` seconds."""
    if series is None:
        return []
    return [Figure(f"time of {series.name}", series.median, "s", target, "at most", series.minimum)]


def peak_memory(name: str, series: Iterable[Series | None], target: float) -> Figure:
    """The largest peak of all runs, in GiB."""
    peaks = [peak for one in series if one for peak in one.peak]
    return Figure(name, max(peaks) / 2**30, "GiB", target, "at most")


def emptied(*paths: Path) -> Callable[[], None]:
    """A function that removes files and folders, so that a command can write them anew."""

    def remove() -> None:
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    return remove


def floor(name: str, read: Sequence[Path], copied: Path, to: Path, *, flush: bool = False) -> Contender:
    """What no tool can beat by much: `cat` of what has to be read, `cp` of what has to be written.

    With `flush` it ends when the copy is on disk, as `ckpt` does. Neither reflinks nor holes make the copy cheaper.
    """
    script = (
        'to=$1; from=$2; shift 2; [ $# -eq 0 ] || cat "$@" >/dev/null; cp --reflink=never --sparse=never "$from" "$to"'
    )
    script += '; sync "$to"' if flush else ""
    nbytes = sum(path.stat().st_size for path in (*read, copied))
    return Contender(
        name, "floor", shell(script, to, copied, *read), prepare=emptied(to), clean=emptied(to), nbytes=nbytes
    )
