"""Every packed matrix computed again from the base, and compared with what is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.case import Case, Found, Setting, compare, peak_memory, ratio
from benchmarks.cases.experts import FULL, PRESET, TINY
from benchmarks.inputs import Experts, make_experts
from benchmarks.inside import inside
from benchmarks.measuring import Contender, ckpt, run, shell
from benchmarks.result import CaseResult, Check, Figure
from benchmarks.stored import flip_a_bit, places

OURS = "ckpt verify --level full"
INSIDE = "verify.verify, full"
FLOOR = "cat both"
CODES = frozenset({0, 1})
"""Expert layers alone are no whole model, and verify says so."""


def _measure(setting: Setting) -> CaseResult:
    work, size = setting.work, TINY if setting.quick else FULL
    for prefix, shape in (("", size), ("small-", TINY)):
        base = make_experts(work / f"{prefix}base", shape)
        run(ckpt("quantize", base, *PRESET, "--out", work / f"{prefix}export", "--no-verify"))
    read = [work / "base" / "model.safetensors", work / "export" / "model.safetensors"]
    run(_command(work), CODES)
    found = compare(_contenders(work, read), setting, read)
    return CaseResult(
        CASE.name,
        CASE.title,
        f"{size.modules} packed matrices, {read[1].stat().st_size / 1e9:.2f} GB, "
        f"against {read[0].stat().st_size / 1e9:.2f} GB",
        found.series,
        tuple(_figures(found)),
        tuple(_checks(work, size)),
    )


def _command(work: Path) -> tuple[str, ...]:
    report = ("--format", "json", "--output", work / "report.json")
    return ckpt("verify", work / "export", "--base", work / "base", "--level", "full", *report)


def _contenders(work: Path, read: list[Path]) -> list[Contender]:
    nbytes = sum(path.stat().st_size for path in read)
    arguments = [
        {"src": str(work / f"{prefix}export"), "base": str(work / f"{prefix}base")} for prefix in ("small-", "")
    ]
    return [
        Contender(OURS, "ours", _command(work), nbytes=nbytes, codes=CODES),
        Contender(INSIDE, "ours", inside("ours.verify", *arguments), nbytes=nbytes, timed_inside=True),
        Contender(FLOOR, "floor", shell('cat "$@" >/dev/null', *read), nbytes=nbytes),
    ]


def _figures(found: Found) -> Iterator[Figure]:
    ours, call, least = found.of(OURS), found.of(INSIDE, "in process"), found.of(FLOOR)
    yield from ratio("speed relative to cat, in process", least, call, 0.5)
    yield from ratio("speed relative to cat, whole process", least, ours, 0.5)
    yield peak_memory("peak memory", [ours, found.of(INSIDE)], 1)


def _checks(work: Path, size: Experts) -> Iterator[Check]:
    run(_command(work), CODES)
    yield Check("a sound export is found sound", not _contents(work))
    packed = sorted(name for name in places(work / "export") if name.endswith(".weight_packed"))
    for name in (packed[0], packed[len(packed) // 2], packed[-1]):
        place = places(work / "export")[name]
        flip_a_bit(place)
        run(_command(work), CODES)
        flip_a_bit(place)
        yield Check(f"one flipped bit in {name} is found", len(_contents(work)) == 1)


def _contents(work: Path) -> list[dict[str, Any]]:
    """Findings about contents in the last report."""
    report = json.loads((work / "report.json").read_text())
    return [finding for finding in report["findings"] if finding["rule"].startswith("N")]


def _disk(quick: bool) -> int:
    size = TINY if quick else FULL
    return size.nbytes + size.packed_nbytes + (64 << 20)


CASE = Case("verify-full", "Verifying every byte", _disk, _measure)
