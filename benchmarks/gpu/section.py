"""`python -m benchmarks.gpu.section NAME WORK quick|full`: one section, its rows printed as they are found."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.rows import tell


def main(arguments: Sequence[str]) -> None:
    name, work, size = arguments
    tell(import_module(f"benchmarks.gpu.{name}").measure(Path(work), quick=size == "quick"))


if __name__ == "__main__":
    main(sys.argv[1:])
