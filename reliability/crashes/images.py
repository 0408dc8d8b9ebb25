"""Real file systems that lose power: ext4, XFS and btrfs in a file, copied while a run stands at a boundary.

What is in the file then is what the file system has written so far, and no more. The copy is mounted, so that the file
system mends itself as after a crash, and judged. The device is taken to write in the order in which it was told to.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reliability.crashes.cases import Case, Way
from reliability.crashes.kills import Tally, Trial
from reliability.crashes.machine import judged, run_again
from reliability.crashes.tracer import Boundary
from reliability.disks.mounts import LEAST, MAKERS

TELLING = ("fsync", "rename", "renameat2", "unlink", "linkat")
"""Calls before which the power fails."""


def lose_power(case: Case, way: Way, kind: str, template: Path, room: Path, tally: Tally, *, every: int = 1) -> None:
    """Run `case` on a file system of this kind in the folder `room`, and judge what each power failure leaves."""
    room.mkdir(parents=True, exist_ok=True)
    image, place = room / "disk", room / "at"
    place.mkdir(exist_ok=True)
    _made(image, kind)
    snapshots: list[tuple[str, Path]] = []
    with _mounted(image, place, kind):
        trial = Trial(case, way, template, place / "room")
        trial.fresh_room()
        os.sync()
        done = trial.run(_photographer(image, snapshots, every))
        snapshots.append((f"the end, {done.code}", _photographed(image, len(snapshots))))
    image.unlink()
    for what, snapshot in snapshots:
        tally.tried += 1
        with _mounted(snapshot, place, kind):
            faults = list(judged(trial, tally, ended=what.startswith("the end")))
            if not faults:
                tally.twice += 1
                faults = list(run_again(trial))
        snapshot.unlink()
        tally.faults += [f"{case.name}, {way}, {kind}, no power at {what}: {fault}" for fault in faults]


def _photographer(image: Path, snapshots: list[tuple[str, Path]], every: int) -> Callable[[Boundary], None]:
    seen: list[Boundary] = []

    def strike(boundary: Boundary) -> None:
        if boundary.call.name in TELLING:
            seen.append(boundary)
            if len(seen) % every == 0:
                snapshots.append((str(boundary), _photographed(image, len(snapshots))))

    return strike


def _photographed(image: Path, number: int) -> Path:
    copy = image.with_name(f"disk-{number}")
    _do("cp", "--sparse=always", str(image), str(copy))
    return copy


def _made(image: Path, kind: str) -> None:
    image.unlink(missing_ok=True)
    with image.open("wb") as file:
        file.truncate(LEAST[kind])
    _do(*MAKERS[kind], str(image))


@contextmanager
def _mounted(image: Path, place: Path, kind: str) -> Iterator[None]:
    _do("mount", "-t", kind, "-o", "loop", str(image), str(place))
    try:
        yield
    finally:
        _do("umount", str(place))


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
