"""`python -m benchmarks.page [RESULT]`: write the figures in docs/performance.md, and its plots, from result files.

The reasons in `reasons.toml` go into the result first. What stands outside the markers is written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measuring import ROOT
from benchmarks.plot import draw
from benchmarks.reasons import reasons
from benchmarks.result import load, save
from benchmarks.tables import gpu_markdown, markdown

PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "results"
CPU, GPU = RESULTS / "cpu.json", RESULTS / "gpu.json"

NOT_YET = "Not measured yet."


def main(arguments: Sequence[str]) -> None:
    """Bring page and plots up to date with the result given, or the one that is kept."""
    cpu = Path(arguments[0]) if arguments else CPU
    if cpu.is_file():
        result = load(cpu).with_reasons(reasons())
        save(result, cpu)
        draw(result, IMAGES)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), blocks(cpu, GPU)), encoding="utf-8")


def blocks(cpu: Path, gpu: Path) -> dict[str, str]:
    """The text for each pair of markers."""
    return {
        "cpu": markdown(load(cpu)) if cpu.is_file() else NOT_YET,
        "gpu": gpu_markdown(json.loads(gpu.read_text(encoding="utf-8"))) if gpu.is_file() else NOT_YET,
    }


def filled(text: str, blocks: Mapping[str, str]) -> str:
    """`text` with each block between its markers. Raises ValueError where a pair of markers is missing."""
    for name, block in blocks.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"the page needs {begin} and {end} once")
        text = pattern.sub(lambda _, body=f"{begin}\n{block}\n{end}": body, text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    main(sys.argv[1:])
