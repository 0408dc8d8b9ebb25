"""What a run of the benchmark found, as values and as the JSON that `result.schema.json` describes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from benchmarks.measuring import Contender, Role, Run, readable

VERSION = 1

Scope = Literal["process", "in process"]
Sense = Literal["at least", "at most"]


@dataclass(frozen=True)
class Series:
    """All timings of one contender, in seconds: of whole processes, or of the call inside. `nbytes` is what had to be
    moved (0: nothing to speak of); `peak`, `read` and `written` are bytes of each run, empty for calls inside."""

    name: str
    role: Role
    scope: Scope
    command: str
    seconds: tuple[float, ...]
    nbytes: int = 0
    peak: tuple[int, ...] = ()
    read: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    tags: Mapping[str, int] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def minimum(self) -> float:
        return min(self.seconds)

    @property
    def bytes_per_second(self) -> float:
        """By the median."""
        return self.nbytes / self.median


@dataclass(frozen=True)
class Figure:
    """One number that was asked for, or is of interest. `by_minima` is the same from the fastest runs; `target` and
    `reached` are None where nothing was asked; `reason` says why a target was not reached."""

    name: str
    value: float
    unit: str
    target: float | None = None
    sense: Sense = "at least"
    by_minima: float | None = None
    reason: str = ""

    @property
    def reached(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.sense == "at least" else self.value <= self.target


@dataclass(frozen=True)
class Check:
    """Something that was proven of what was written."""

    name: str
    passed: bool


@dataclass(frozen=True)
class CaseResult:
    """One case. `input` says what was worked on; `failed` is what ended it early, empty where nothing did."""

    name: str
    title: str
    input: str
    series: tuple[Series, ...] = ()
    figures: tuple[Figure, ...] = ()
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: str = ""
    failed: str = ""


@dataclass(frozen=True)
class Result:
    """A run: `machine` and `versions` as people write them, `command` as it was given, `started` in UTC."""

    machine: Mapping[str, str]
    versions: Mapping[str, str]
    command: str
    started: str
    quick: bool
    repeats: int
    cases: tuple[CaseResult, ...] = ()

    def with_case(self, case: CaseResult) -> Result:
        return replace(self, cases=(*self.cases, case))

    def with_reasons(self, reasons: Mapping[str, Mapping[str, str]]) -> Result:
        """Figures that missed their target get the reason given for them, by case and figure; others lose theirs."""
        return replace(self, cases=tuple(_reasoned(case, reasons.get(case.name, {})) for case in self.cases))


def _reasoned(case: CaseResult, reasons: Mapping[str, str]) -> CaseResult:
    figures = (
        replace(figure, reason=reasons.get(figure.name, "") if figure.reached is False else "")
        for figure in case.figures
    )
    return replace(case, figures=tuple(figures))


def series_of(contenders: Sequence[Contender], runs: Mapping[str, Sequence[Run]], work: Path) -> tuple[Series, ...]:
    """The timings of every contender that ran in `work`: of its processes, and of the call inside where it tells."""
    found: list[Series] = []
    for contender in contenders:
        if mine := runs[contender.name]:
            found.append(_processes(contender, mine, work))
            if contender.timed_inside:
                inside = tuple(run.seconds_inside for run in mine)
                found.append(replace(found[-1], scope="in process", seconds=inside, peak=(), read=(), written=()))
    return tuple(found)


def _processes(contender: Contender, runs: Sequence[Run], work: Path) -> Series:
    return Series(
        contender.name,
        contender.role,
        "process",
        readable(contender.command, work),
        tuple(run.seconds for run in runs),
        contender.nbytes,
        tuple(run.peak for run in runs),
        tuple(run.read for run in runs),
        tuple(run.written for run in runs),
        dict(contender.tags),
    )


def save(result: Result, path: Path) -> None:
    """Write `result` with medians, minima and verdicts beside what they follow from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(result), indent=1) + "\n", encoding="utf-8")


def document(result: Result) -> dict[str, Any]:
    """The JSON of `result`."""
    cases = [
        asdict(case)
        | {
            "series": [asdict(s) | {"median": s.median, "minimum": s.minimum} for s in case.series],
            "figures": [asdict(figure) | {"reached": figure.reached} for figure in case.figures],
        }
        for case in result.cases
    ]
    found: dict[str, Any] = json.loads(json.dumps({"version": VERSION, **asdict(result), "cases": cases}))
    return found


def load(path: Path) -> Result:
    """Read what `save` wrote. Raises ValueError for another version."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if data.pop("version") != VERSION:
        raise ValueError(f"{path} was written by another version of the benchmark")
    return Result(**{**data, "cases": tuple(_case(case) for case in data["cases"])})


def _case(data: Mapping[str, Any]) -> CaseResult:
    parts = {
        "series": tuple(_series(one) for one in data["series"]),
        "figures": tuple(Figure(**_without(one, "reached")) for one in data["figures"]),
        "checks": tuple(Check(**one) for one in data["checks"]),
        "notes": tuple(data["notes"]),
    }
    return CaseResult(**{**data, **parts})


def _series(data: Mapping[str, Any]) -> Series:
    lists = {name: tuple(data[name]) for name in ("seconds", "peak", "read", "written")}
    return Series(**{**_without(data, "median", "minimum"), **lists})


def _without(data: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}
