"""The `lm_head` of Qwen3.6-35B-A3B to INT8 g128."""

from __future__ import annotations

from dataclasses import asdict

from benchmarks.case import Case, Setting
from benchmarks.cases.quantizing import Job, measure
from benchmarks.inputs import Head, make
from benchmarks.result import CaseResult

NAME, TITLE = "head", "lm_head to INT8 g128"

SCHEME = {"target": "re:.*lm_head$", "bits": "8", "group_size": "128"}
OPTIONS = ("--target", SCHEME["target"], "--bits", SCHEME["bits"], "--group-size", SCHEME["group_size"])

FULL, TINY = Head(), Head(1024, 256)


def _measure(setting: Setting) -> CaseResult:
    size = TINY if setting.quick else FULL
    base = make("head", setting.work / "base", seed=0, **asdict(size))
    small = make("head", setting.work / "small", seed=0, **asdict(TINY))
    given = f"lm_head [{size.vocabulary}, {size.hidden}]"
    return measure(Job(NAME, TITLE, given, base, small, OPTIONS, SCHEME), setting)


def _disk(quick: bool) -> int:
    return 6 * (TINY if quick else FULL).nbytes + (64 << 20)


CASE = Case(NAME, TITLE, _disk, _measure)
