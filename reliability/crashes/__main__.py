"""`python -m reliability.crashes`: break off everything everywhere, and write `results/crashes.json` as it goes on.

With `--every N` only each N-th boundary, so that an hour becomes minutes. Exits with 1 where anything did not survive.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from reliability.crashes.cases import CASES, WAYS, Case, Way, warm
from reliability.crashes.images import lose_power
from reliability.crashes.inputs import prepare
from reliability.crashes.kills import Tally, Trial, kill_everywhere
from reliability.crashes.machine import crash_everywhere
from reliability.crashes.signals import signal_everywhere
from reliability.crashes.together import PAIRS, both, taken_over
from reliability.disks.mounts import MAKERS, can_make, can_mount
from reliability.rows import Row, save

SAMPLE = 12
"""Of so many boundaries one gets a signal."""

ON_DISKS = ("int8-head", "graft-mtp", "restore-files", "card")
"""The commands for real file systems: one that computes, one that copies, one that links, one that edits."""

MEMORY = Path("/dev/shm")

Part = Callable[[Path, Path, int], Iterator[Row]]


def main(arguments: Sequence[str]) -> int:
    """Run the parts that were asked for; 1 where something did not survive."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that nothing stays mounted
    warm()
    home = Path(tempfile.mkdtemp(prefix="ckpt-crashes-", dir=MEMORY if MEMORY.is_dir() else None))
    rows: list[Row] = []
    try:
        template = prepare(home / "template")
        for name in options.only or PARTS:
            for row in PARTS[name](template, home / "room", options.every):
                print(row, flush=True)
                rows.append(row)
                save(options.topic, rows)
    finally:
        shutil.rmtree(home)
    return int(any(row.survived < row.tried for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m reliability.crashes", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th boundary")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="parts to run")
    parser.add_argument("--topic", default="crashes", help="name of the file in results/")
    return parser


def kills(template: Path, room: Path, every: int) -> Iterator[Row]:
    """SIGKILL at every boundary, of every command in every way."""
    for trial in _trials(template, room):
        tally, step = Tally(), 1 if trial.way in ("edit", "new file") else every
        kill_everywhere(trial, tally, every=step, fresh_every=25)
        note = f"{_sampled(step)}{tally.torn} in the middle of a write, {tally.twice} killed again while going on"
        note += f"; {tally.kept} finished shards were kept" if tally.kept else ""
        note += f"; {tally.undone} left half-replaced files, undone by the next reader" if tally.undone else ""
        yield _row(f"SIGKILL: {_named(trial.case, trial.way)}", tally, note)


def interrupts(template: Path, room: Path, every: int) -> Iterator[Row]:
    """SIGINT and SIGTERM at a sample of boundaries."""
    for trial in _trials(template, room):
        tally = Tally()
        signal_everywhere(trial, tally, every=min(SAMPLE * every, max(2, trial.boundaries // 3)))
        yield _row(f"SIGINT, SIGTERM: {_named(trial.case, trial.way)}", tally, "exit code 130, what is kept is named")


def models(template: Path, room: Path, every: int) -> Iterator[Row]:
    """Power failures, on two models of a disk."""
    for trial in _trials(template, room):
        tally = Tally()
        crash_everywhere(trial, tally, every=every)
        note = f"{_sampled(every)}{_met(tally)}"
        yield _row(f"power failure, modelled: {_named(trial.case, trial.way)}", tally, note)


def disks(template: Path, room: Path, every: int) -> Iterator[Row]:
    """Power failures on real file systems."""
    for kind in MAKERS:
        if not (can_mount() and can_make(kind)):
            continue
        for case in CASES:
            tally = Tally()
            for way in case.ways if case.name in ON_DISKS else ():
                lose_power(case, way, kind, template, room.with_name("disks"), tally, every=every)
            if tally.tried:
                note = f"{_sampled(every)}{_met(tally)}"
                yield _row(f"power failure, {kind}: {case.name}", tally, note)


def together(template: Path, room: Path, every: int) -> Iterator[Row]:
    """Two runs at once, with locks and without."""
    for locks in (True, False):
        for pair in PAIRS:
            tally = Tally()
            both(pair, template, room, tally, every=5 * every, locks=locks)
            yield _row(f"two at once{'' if locks else ', no flock'}: {pair.what}", tally, "refused at once, by name")
    tally = Tally()
    taken_over(CASES[5], WAYS[0], template, room, tally, every=5 * every)
    yield _row("a lock whose holder is dead, no flock", tally, "taken over")


PARTS: dict[str, Part] = {"together": together, "models": models, "disks": disks, "signals": interrupts, "kills": kills}


def _trials(template: Path, room: Path) -> Iterator[Trial]:
    for case in CASES:
        for way in case.ways:
            yield Trial(case, way, template, room)


def _named(case: Case, way: Way) -> str:
    return case.name if way in ("edit", "new file") else f"{case.name}, {way}"


def _sampled(every: int) -> str:
    return "" if every == 1 else f"one boundary in {every}; "


def _met(tally: Tally) -> str:
    return f"{tally.outcomes['after']} times the new one, {tally.outcomes['before']} times the old one"


def _row(what: str, tally: Tally, note: str) -> Row:
    for fault in tally.faults:
        print(f"      {fault}", file=sys.stderr, flush=True)
    return Row(what, tally.tried, tally.survived, note)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
