"""`python -m evidence.timed DEVICE.json`: where the GPU's time of a step goes, from what `evidence.device` wrote.

Writes results/device.json: for each build and number of streams the step, the time on the clock, and the kernels by
kind, with how many there are.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evidence.full import BUILDS
from evidence.observed import RESULTS

KINDS: tuple[tuple[str, str], ...] = (
    ("routed experts, Marlin", r"marlin_moe"),
    ("linear layers and head, packed: Machete", r"machete"),
    ("linear layers and head, dense: cuBLAS", r"nvjet|cublas|reduce_1Block|dot_kernel"),
    ("linear attention's state", r"gated_delta|causal_conv1d"),
    ("attention", r"flash"),
    ("routing", r"moe::"),
    ("all else: norms, activations, sampling", r""),
)
"""The first whose pattern is found in a kernel's name."""

Result = dict[str, Any]


def main(path: Path) -> None:
    """Write results/device.json."""
    found: Mapping[str, Result] = json.loads(path.read_text())
    rows = [row(build.what, streams) for build in BUILDS for streams in found[build.name]["streams"]]
    rows.sort(key=lambda one: int(one["streams"]))
    document = {"versions": found[BUILDS[0].name]["versions"], "rows": rows}
    (RESULTS / "device.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def row(what: str, measured: Result) -> Result:
    """One build at so many streams."""
    kinds = {kind: [0.0, 0.0] for kind, _ in KINDS}
    for name, (count, milliseconds) in measured["kernels"].items():
        sums = kinds[kind_of(name)]
        sums[0] += count
        sums[1] += milliseconds
    told = {kind: {"kernels": round(count), "ms": round(ms, 3)} for kind, (count, ms) in kinds.items()}
    return {"what": what, **{key: measured[key] for key in ("streams", "step_ms", "clock_ms")}, "kinds": told}


def kind_of(kernel: str) -> str:
    return next(kind for kind, pattern in KINDS if re.search(pattern, kernel))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
