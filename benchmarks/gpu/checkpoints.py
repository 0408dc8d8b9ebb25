"""`quantize` of expert layers from folder to folder, by the GPU and by the CPU, with the same bytes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.rows import Row
from benchmarks.gpu.transfers import MEMORY
from benchmarks.inputs import Experts, make_experts
from benchmarks.stored import same
from checkpoint import Draft, apply_plan, open_checkpoint, plan_for
from surgery import Group, Scheme, quantize
from surgery.devices import packed_by, packer_for

TARGET = "re:.*experts.*"
BUDGET = 16 << 30
WORKERS = 16


def measure(work: Path, *, quick: bool) -> Iterator[Row]:
    """From open to published, as GB/s that are read, with and without hashing what is written; the faster of two."""
    size = Experts(layers=1, experts=8) if quick else Experts()
    base = make_experts(work / "base", size)
    _quantize(base, work / "cpu", "cpu", WORKERS, hashing=False)  # compiles, and is what the others have to equal
    for folder, kind in ((MEMORY / work.name, "memory (tmpfs)"), (work, "the disk")):
        for device in ("cuda", "cpu"):
            for hashing in (False, True):
                out = folder / device
                speed = max(size.nbytes / _timed(base, out, device, hashing) / 1e9 for _ in range(2))
                note = "hashed" if hashing else "not hashed"
                yield Row(f"quantize by {device} to {kind}, {WORKERS} threads", speed, "GB/s", note=note)
        equal = same(work / "cpu", folder / "cuda")
        yield Row(f"what the GPU wrote to {kind}", "equal" if equal else "differs", "", "equal", equal)
    shutil.rmtree(MEMORY / work.name)


def _timed(base: Path, out: Path, device: str, hashing: bool) -> float:
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(exist_ok=True)
    begin = time.perf_counter()
    _quantize(base, out, device, WORKERS, hashing=hashing)
    return time.perf_counter() - begin


def _quantize(base: Path, out: Path, device: str, workers: int, *, hashing: bool) -> None:
    draft = quantize(Draft.of(open_checkpoint(base)), [Group((TARGET,), Scheme(4, 32))])
    plan = plan_for(packed_by(draft, packer_for(device)), out)
    apply_plan(plan, out, workers=workers, memory=BUDGET, hashing=hashing)
