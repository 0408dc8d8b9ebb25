"""How time and memory grow: with bytes, with the number of tensors, with workers, and with the size of shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.case import Case, Setting, compare, emptied, floor, peak_memory
from benchmarks.cases.experts import FULL as ONE
from benchmarks.cases.experts import PRESET, TINY
from benchmarks.inputs import Experts, make_experts
from benchmarks.measuring import PLAIN, Contender, available_memory, ckpt, run
from benchmarks.result import CaseResult, Figure, Series

MANY = Experts(experts=2560, intermediate=64, hidden=1632)
"""Ten times as many matrices of a tenth of the size: within half a percent the bytes of one layer."""


@dataclass(frozen=True)
class Point:
    """One input and how many workers it is given; `with_floor` times `cat` and `cp` of the same beside it."""

    name: str
    size: Experts
    workers: int = 2
    with_floor: bool = False


FULL = (
    Point("1 layer", ONE, with_floor=True),
    Point("1 layer, 1 worker", ONE, workers=1),
    Point("1 layer in 10 times as many matrices", MANY),
    Point("3 layers", replace(ONE, layers=3), with_floor=True),
    Point("4 layers, 1 shard", replace(ONE, layers=4)),
    Point("4 layers, 8 shards", replace(ONE, layers=4, shards=8)),
    Point("10 layers", replace(ONE, layers=10), with_floor=True),
)
QUICK = (
    Point("1 layer", TINY, with_floor=True),
    Point("1 layer, 1 worker", TINY, workers=1),
    Point("1 layer in 10 times as many matrices", replace(TINY, experts=80, intermediate=32, hidden=64)),
    Point("3 layers", replace(TINY, layers=3), with_floor=True),
    Point("4 layers, 8 shards", replace(TINY, layers=4, shards=8)),
)

MOST = 3
"""Repeats; the largest inputs take a while."""


def _measure(setting: Setting) -> CaseResult:
    series: list[Series] = []
    notes: list[str] = []
    for number, point in enumerate(QUICK if setting.quick else FULL):
        if _needed(point.size) > setting.disk:
            notes.append(f"{point.name}: skipped, needs {_needed(point.size) / 1e9:.0f} GB of disk")
            continue
        room = setting.work / str(number)
        series += _point(point, replace(setting, work=room, repeats=min(MOST, setting.repeats)))
        notes += _cold(point)
        emptied(room)()
    return CaseResult(
        CASE.name, CASE.title, "as in the case experts", tuple(series), tuple(_figures(series)), notes=tuple(notes)
    )


def _point(point: Point, setting: Setting) -> tuple[Series, ...]:
    base, out = make_experts(setting.work / "base", point.size), setting.work / "out"
    command = _command(base, out, point.workers)
    run(command)
    read, written = sorted(base.glob("*.safetensors")), sorted(out.glob("*.safetensors"))
    nbytes = sum(path.stat().st_size for path in (*read, *written))
    tags = {
        "bytes": point.size.nbytes,
        "modules": point.size.modules,
        "workers": point.workers,
        "shards": point.size.shards,
    }
    contenders = [Contender(point.name, "ours", command, emptied(out), nbytes=nbytes, tags=tags)]
    if point.with_floor:
        copied = setting.work / "copied"
        copied.hardlink_to(written[0])
        least = floor(f"{point.name}: cat input, cp output", read, copied, setting.work / "copy")
        contenders.append(replace(least, tags=tags))
    return compare(contenders, setting, read).series


def _command(base: Path, out: Path, workers: int) -> tuple[str, ...]:
    return ckpt("quantize", base, *PRESET, "--workers", str(workers), "--out", out, *PLAIN)


def _cold(point: Point) -> Iterator[str]:
    """What the page cache cannot hold beside what is written is read from disk in part."""
    needed = point.size.nbytes + 2 * point.size.packed_nbytes
    if needed > 0.9 * available_memory():
        yield f"{point.name}: {needed / 1e9:.0f} GB do not fit the page cache for sure, so part of it was read cold"


def _figures(series: list[Series]) -> Iterator[Figure]:
    ours = {one.name: one for one in series if one.role == "ours"}
    yield peak_memory("peak memory of all", list(ours.values()), 1)
    one = ours["1 layer"]
    for name, other in ours.items():
        if other is not one:
            yield Figure(
                f"time of {name}", other.median / one.median, "x 1 layer", by_minima=other.minimum / one.minimum
            )


def _needed(size: Experts) -> int:
    """The input, and what the command and a copy write."""
    return size.nbytes + 3 * size.packed_nbytes + (64 << 20)


CASE = Case("scaling", "How time and memory grow", lambda quick: _needed(TINY if quick else ONE), _measure)
