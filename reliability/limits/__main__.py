"""`python -m reliability.limits [--short]`: measure all of it, half an hour, and write `results/limits.json`.

The short form is for tests: less of everything, nothing written.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from reliability.forking import warm_up
from reliability.limits.growth import SUBJECTS, Subject, swept
from reliability.limits.handles import bounded
from reliability.limits.memory import LAYOUTS, SHORT, measured
from reliability.rows import Row, save

ROUGH = 1.6
"""The slope that a short run on a busy machine may show; quadratic is 2."""


def main() -> int:
    """Exit code 1 where a limit did not hold."""
    short = "--short" in sys.argv[1:]
    warm_up()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="ckpt-limits-") as folder:
        for row in briefly(Path(folder)) if short else tried(Path(folder)):
            print(row, flush=True)
            rows.append(row)
    if not short:
        save("limits", rows)
    return int(any(row.survived < row.tried for row in rows))


def tried(room: Path) -> Iterator[Row]:
    """Every row, in the order of the page."""
    yield from measured(room, LAYOUTS)
    yield from bounded(room)
    yield from swept(room)


def briefly(room: Path) -> Iterator[Row]:
    """Some of each."""
    yield from measured(room, SHORT)
    yield from bounded(room, 200)
    subjects = [Subject(one.name, max(20, one.first // 8), one.build, QUICK) for one in SUBJECTS if one.name in DOUBLED]
    yield from swept(room, subjects, (1, 4), ROUGH)


QUICK = ("verify", "ignore add")
DOUBLED = ("packed tensors", "config groups", "ignore patterns")

if __name__ == "__main__":
    sys.exit(main())
