"""One layer of fused experts of Qwen3.6-35B-A3B to INT4 g32."""

from __future__ import annotations

from benchmarks.case import Case, Setting
from benchmarks.cases.quantizing import Job, measure
from benchmarks.inputs import Experts, make_experts
from benchmarks.result import CaseResult

NAME, TITLE = "experts", "Fused experts to INT4 g32"

PRESET = ("--preset", "experts-int4-g32")
SCHEME = {"target": r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$", "bits": "4", "group_size": "32"}

FULL = Experts()
TINY = Experts(experts=8, intermediate=64, hidden=256)


def _measure(setting: Setting) -> CaseResult:
    size = TINY if setting.quick else FULL
    base = make_experts(setting.work / "base", size)
    small = make_experts(setting.work / "small", TINY)
    given = f"{size.layers} layer of {size.experts} fused experts, {size.modules} matrices"
    return measure(Job(NAME, TITLE, given, base, small, PRESET, SCHEME, speed=0.6), setting)


def _disk(quick: bool) -> int:
    size = TINY if quick else FULL
    return size.nbytes + 7 * size.packed_nbytes + (64 << 20)


CASE = Case(NAME, TITLE, _disk, _measure)
