"""`python -m reliability.disks [--short]`: try all of it as root, half an hour, and write `results/disks.json`.

The short form is for tests: each subject once, nothing written.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from reliability.crashes.inputs import prepare
from reliability.disks.filling import filled, filled_disks
from reliability.disks.fuse import can_serve
from reliability.disks.lying import lies
from reliability.disks.mounts import MAKERS, can_make, can_mount
from reliability.disks.odd import oddities
from reliability.disks.outcomes import Case
from reliability.forking import warm_up
from reliability.rows import Row, save


def main() -> int:
    """Exit code 1 where something did not hold."""
    short = "--short" in sys.argv[1:]
    if not (can_mount() and can_serve()):
        print("needs root, mount(8) and /dev/fuse", file=sys.stderr)
        return 2
    warm_up()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="ckpt-disks-") as folder:
        os.chmod(folder, 0o755)  # some children have no rights
        for row in briefly(Path(folder)) if short else tried(Path(folder)):
            print(row, flush=True)
            rows.append(row)
    if not short:
        save("disks", rows)
    return int(any(row.survived < row.tried for row in rows))


def tried(room: Path) -> Iterator[Row]:
    """Every row, in the order of the page."""
    inputs = prepare(room / "inputs")
    yield from judged(lies(inputs, room))
    yield from judged(oddities(inputs, room))
    yield from filled_disks(inputs, room, [kind for kind in MAKERS if can_make(kind)])
    yield from filled(inputs, room)


def briefly(room: Path) -> Iterator[Row]:
    """Each subject once, and a command that fills a disk in each way."""
    inputs = prepare(room / "inputs")
    yield from judged(_firsts(lies(inputs, room)))
    yield from judged(_firsts(oddities(inputs, room)))
    yield from filled(inputs, room, ("ignore",), points=3)


def _firsts(cases: Iterable[Case]) -> Iterator[Case]:
    """The first case of each subject."""
    seen: set[str] = set()
    for case in cases:
        if case[0] not in seen:
            seen.add(case[0])
            yield case


def judged(cases: Iterable[Case]) -> list[Row]:
    """A row for each subject, with its notes and, where something did not hold, what came instead."""
    tried: dict[str, int] = {}
    held: dict[str, int] = {}
    notes: dict[str, list[str]] = {}
    for what, check, note in cases:
        fault = check()
        tried[what] = tried.get(what, 0) + 1
        held[what] = held.get(what, 0) + (not fault)
        notes.setdefault(what, []).extend(part for part in (note, fault) if part)
    return [Row(what, tried[what], held[what], "; ".join(dict.fromkeys(notes[what]))) for what in tried]


if __name__ == "__main__":
    sys.exit(main())
