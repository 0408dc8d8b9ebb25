"""A disk that fills up while a command writes to it: at every place where it can, byte by byte and file by file.

Before it writes, a command refuses a disk that is too full. That check is switched off here, as if another program took
the space meanwhile; the file system is a real one that holds no more.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from checkpoint import apply, staging
from reliability.disks.mounts import disk, memory, resize
from reliability.disks.state import beside, contents, state
from reliability.forking import Ended, ckpt
from reliability.rows import Row

PAGE = 4096
PLENTY = 64 << 20
POINTS = 20
"""Amounts of room, evenly from none to what is needed, at which a command is tried."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "quantize": ("quantize", "{base}", "--preset", "experts-int4-g32"),
    "run": ("run", "experts-int4-g32", "{base}"),
    "int8-head": ("int8-head", "{export}"),
    "graft-mtp": ("graft-mtp", "{headless}", "--base", "{base}"),
    "graft": ("graft", "{export}", "--from", "{other}", "--tensors", "re:.*norm.weight$"),
    "ignore": ("ignore", "{export}", "add", "model.a"),
    "restore-files": ("restore-files", "{headless}", "--base", "{base}"),
    "fixup": ("fixup", "{headless}", "--base", "{base}"),
}
"""What is tried; the first name in braces is the source, which in place is what is written."""

FILES = 80
"""More files than any of the commands makes."""

WAYS = ("new folder", "in place", "file by file")

Limit = Callable[[int], None]
"""Leaves this much room on the disk."""


@dataclass
class Tally:
    """What came of the trials of one subject. `where` counts the kinds of file at which space ran out."""

    tried: int = 0
    faults: list[str] = field(default_factory=list)
    where: Counter[str] = field(default_factory=Counter)

    def add(self, fault: str, at: str, kind: str = "") -> None:
        """A trial, and what was wrong, if anything."""
        self.tried += 1
        if kind:
            self.where[kind] += 1
        if fault:
            self.faults.append(f"{at}: {fault}")

    def row(self, what: str, told: str = "") -> Row:
        """The line that says so."""
        places = ", ".join(f"{kind} {count}" for kind, count in self.where.most_common())
        note = [f"{told} {places}".strip(), *self.faults[:3]]
        return Row(what, self.tried, self.tried - len(self.faults), "; ".join(part for part in note if part))


@dataclass(frozen=True)
class Trial:
    """One command, on the disk `home`, whose room is set by `limit`. `inputs` lie elsewhere."""

    name: str
    way: str
    inputs: Path
    home: Path

    @property
    def source(self) -> str:
        return next(word[1:-1] for word in COMMANDS[self.name] if word.startswith("{"))

    @property
    def goal(self) -> Path:
        return self.home / ("out" if self.way == "new folder" else "model")

    def reset(self) -> None:
        """The disk as before the command."""
        for path in self.home.iterdir():
            if path.name != "lost+found":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self.way != "new folder":
            shutil.copytree(self.inputs / self.source, self.goal, symlinks=True)

    def run(self, *, guarded: bool = False) -> Ended:
        """The command itself."""
        places = {name: self.inputs / name for name in ("base", "other", "export", "headless")}
        if self.way == "new folder":
            last: tuple[str, ...] = ("--out", str(self.goal))
        else:
            places[self.source] = self.goal
            last = ("--in-place",)
        words = [word.format(**places) for word in COMMANDS[self.name]]
        return ckpt([*words, "--no-verify", *last], lambda: _arm(guarded, self.way == "file by file"))


def _arm(guarded: bool, one_by_one: bool) -> None:
    if not guarded:
        apply._refuse_full_disk = lambda *arguments, **more: None
    if one_by_one:
        staging._exchange = _no_exchange


def _no_exchange(one: Path, other: Path) -> None:
    raise OSError(errno.ENOSYS, "no renameat2")


def filled(
    inputs: Path,
    room: Path,
    commands: Sequence[str] = tuple(COMMANDS),
    ways: Sequence[str] = WAYS,
    points: int = POINTS,
) -> Iterator[Row]:
    """Every command, in every way, on a disk that is full, or runs out of bytes or of files. `room` is for mounts."""
    for way in ways:
        full, nbytes, files = Tally(), Tally(), Tally()
        for name in commands:
            with memory(room / "small") as home:
                trial = Trial(name, way, inputs, home)
                full.add(refused(trial, partial(_leave_bytes, home)), name)
                attempt(trial, partial(_leave_bytes, home), _room_needed(trial), points, nbytes)
                attempt(trial, partial(_leave_files, home), FILES, max(points, points * 2 - 3), files)
        told = f"{', '.join(commands)}; ran out at"
        yield full.row(f"{way}: a disk that is full is refused before the first byte")
        yield nbytes.row(f"{way}: out of bytes on the way", told)
        yield files.row(f"{way}: out of files (inodes) on the way", told)


def filled_disks(
    inputs: Path,
    room: Path,
    kinds: Sequence[str],
    name: str = "graft",
    ways: Sequence[str] = WAYS,
    points: int = POINTS,
) -> Iterator[Row]:
    """One command in every way, on file systems in a file, filled up by another file."""
    for kind in kinds:
        for way in ways:
            tally = Tally()
            with disk(room / kind, kind) as home:
                trial = Trial(name, way, inputs, home)
                attempt(trial, partial(_fill, home), _room_needed(trial), points, tally)
            yield tally.row(f"{way}: out of bytes on {kind}", f"{name}; ran out at")


def attempt(trial: Trial, limit: Limit, needed: int, points: int, tally: Tally) -> None:
    """Try with ever more room until the command comes through."""
    limit(-1)
    trial.reset()
    expected = _expected(trial)
    trial.reset()
    before = state(trial.home)
    for point in range(points + 1):
        limit(needed * point // points)
        ended = trial.run()
        limit(-1)
        if ended.code == 0:
            break
        at = f"{trial.name} with room for {needed * point // points:,}"
        tally.add(_fault(trial, ended, before, expected), at, _kind(ended.said, trial.home))
        trial.reset()
        before = state(trial.home)


def refused(trial: Trial, limit: Limit) -> str:
    """With the check that commands make: "" if a full disk is refused before the first byte, else what is wrong."""
    limit(-1)
    trial.reset()
    before = state(trial.home)
    limit(PAGE)
    ended = trial.run(guarded=True)
    limit(-1)
    if ended.code != 3 or "bytes free" not in ended.said or state(trial.home) != before:
        return f"code {ended.code}: {ended.said[-300:]}"
    return ""


def _expected(trial: Trial) -> dict[str, object]:
    ended = trial.run()
    if ended.code:
        raise RuntimeError(f"{trial}: {ended.said}")
    return contents(trial.goal)


def _room_needed(trial: Trial) -> int:
    """Bytes that the disk must have free for it: tried once, and some pages more."""
    trial.reset()
    before = shutil.disk_usage(trial.home).used
    ended = trial.run()
    if ended.code:
        raise RuntimeError(f"{trial}: {ended.said}")
    made = sum(path.lstat().st_blocks * 512 for path in trial.goal.rglob("*"))
    return max(made if trial.way != "new folder" else shutil.disk_usage(trial.home).used - before, 8 * PAGE)


def _fault(trial: Trial, ended: Ended, before: object, expected: object) -> str:
    """What is not as it should be after a run without room, and after the next one with it."""
    if ended.code != 3 or "Traceback" in ended.said:
        return f"code {ended.code}: {ended.said[-300:]}"
    if not re.search(r"/[^:]+: .*No space left on device; room for [\d,]+ bytes", ended.said):
        return f"does not say what is full: {ended.said[-300:]}"
    if state(trial.home) != before:
        return f"left {beside(trial.goal)}"
    again = trial.run()
    if again.code or contents(trial.goal) != expected:
        return f"the next run made something else: {again.said[-300:]}"
    return ""


def _kind(said: str, home: Path) -> str:
    """Which kind of file the message names."""
    match = re.search(rf"{re.escape(str(home))}/(\S+): ", said)
    name = match[1] if match else "?"
    for mark, kind in (
        (".ckpt-journal", "journal"), (".ckpt-lock", "lock"), ("record.", "undo record"), (".ckpt-undo", "undo folder"),
        (".safetensors", "shard"), ("index.json", "index"), ("ckpt.manifest.json", "manifest"),
        ("config.json", "config"),
    ):  # fmt: skip
        if mark in name:
            return kind
    return "folder" if name.endswith(".ckpt-new") else "side file"


def _leave_bytes(home: Path, free: int) -> None:
    used = shutil.disk_usage(home).used
    resize(home, PLENTY if free < 0 else used + max(PAGE, free // PAGE * PAGE))


def _leave_files(home: Path, free: int) -> None:
    room = os.statvfs(home)
    resize(home, PLENTY, 1 << 16 if free < 0 else room.f_files - room.f_ffree + max(1, free))


def _fill(home: Path, free: int) -> None:
    """Take all but `free` bytes by a file of that size."""
    ballast = home.parent / f"{home.name}.none" if free < 0 else home / "ballast"
    (home / "ballast").unlink(missing_ok=True)
    os.sync()
    if free < 0:
        return
    available = shutil.disk_usage(home).free
    with ballast.open("wb") as file:
        size = max(0, available - free)
        while size > 0:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size -= 16 * PAGE
            else:
                break
