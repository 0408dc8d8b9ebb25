"""The lock beside a folder: whoever holds it is the only run that writes there.

The file's content says who that is, for people; that a run lives is known from `flock`, which ends with it. Where the
file system has none, the file's existence is the lock, and a holder counts as dead that was a process of this machine
and is no longer.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from checkpoint.errors import Problem, Refused
from checkpoint.interrupts import deferred, undisturbed

CANNOT_LOCK = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}

MOST = 300
"""Characters of a command that are kept, and shown."""

MOMENT = 0.2
"""Seconds that a run waits for a lock before it says that another run has it."""

_START = 19
"""Of the fields behind the name in `/proc/PID/stat`: when the process started, in ticks since boot."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, as it said itself. `machine` is a boot of a machine and its process numbers' space, `ticks`
    when the process started: the number alone may be another process's by now."""

    pid: int
    host: str
    command: str
    since: str
    machine: str
    ticks: str

    @staticmethod
    def of_this_process() -> Holder:
        command = shlex.join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])[:MOST]
        since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return Holder(os.getpid(), socket.gethostname(), command, since, _machine(), _ticks(os.getpid()))

    @staticmethod
    def read(handle: int) -> Holder | None:
        """What the lock file open as `handle` says; None where that is not to be understood."""
        try:
            told = json.loads(os.pread(handle, 8 * MOST, 0))
            words = {field.name: told[field.name] for field in fields(Holder)}
        except (ValueError, TypeError, KeyError, RecursionError, OSError):
            return None
        kinds = {field.name: int if field.name == "pid" else str for field in fields(Holder)}
        return Holder(**words) if all(type(words[name]) is kind for name, kind in kinds.items()) else None

    @property
    def is_dead(self) -> bool:
        """Did it run on this machine, and does no longer? Of others nothing is known."""
        if self.host != socket.gethostname() or not self.machine or not self.ticks:
            return False
        boot, space = _parts(self.machine), _parts(_machine())
        return boot[0] != space[0] or (boot == space and _ticks(self.pid) != self.ticks)

    def __str__(self) -> str:
        return f"`{self.command[:MOST]}`, process {self.pid} on {self.host[:MOST]}, since {self.since[:MOST]}"


def lock_path(target: Path) -> Path:
    return target.parent / f".{target.name}.ckpt-lock"


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Be the only run that writes `target`. Raises Refused where another one is."""
    path, handle = lock_path(target), -1
    try:
        with deferred():  # a lock that is taken is given back
            handle = _acquire(path, target)
        with suppress(OSError):  # a full disk: the lock holds, and nobody can say who has it
            os.truncate(handle, 0)
            os.write(handle, json.dumps(asdict(Holder.of_this_process())).encode())
        yield
    finally:
        with undisturbed():
            if handle >= 0:
                with suppress(OSError):  # a lock file that nobody holds stops nobody
                    path.unlink()
                os.close(handle)


def opened(path: Path, mode: int = 0o644) -> tuple[int, bool]:
    """The file open for writing, links not followed, and whether it was made for that. Raises OSError."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, mode), True
        except FileExistsError:
            with suppress(FileNotFoundError):
                return os.open(path, flags | os.O_NONBLOCK), False


def held(handle: int) -> bool | None:
    """Take the lock of an open file, until it is closed: False where another has it, None where there are no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in CANNOT_LOCK:
            os.close(handle)
            raise
        return None
    return True


def is_at(path: Path, handle: int) -> bool:
    """Is the open file still the one of that name?"""
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _acquire(path: Path, target: Path) -> int:
    """Open and lock `path`; anew where its last holder removed it meanwhile, and for a moment where it is held: by a
    reader that clears away what a dead run left."""
    until = time.monotonic() + MOMENT
    while True:
        handle, made = opened(path)
        locks = held(handle)
        if (made if locks is None else locks) and is_at(path, handle):
            return handle
        holder = Holder.read(handle)
        busy = locks is False or (locks is None and not made and not _taken_over(path, handle, holder))
        os.close(handle)
        if busy and time.monotonic() > until:
            raise Refused(_busy(target, path, holder))
        if busy:
            time.sleep(MOMENT / 10)


def _taken_over(path: Path, handle: int, holder: Holder | None) -> bool:
    """Where there are no locks: has the holder of a file that was there died? Then it is out of the way."""
    if holder is None or not holder.is_dead:
        return False
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        os.rename(path, aside)
        if not is_at(aside, handle):  # another run took it over between the look and the step
            with suppress(FileExistsError):
                os.link(aside, path)
        aside.unlink()
    return True


def _busy(target: Path, path: Path, holder: Holder | None) -> Problem:
    found = f"another run is writing it: {holder}" if holder else "another run is writing it"
    return Problem("target-busy", found, str(target), remedy=f"Wait for it to end; {path.name} beside it is its lock")


def _machine() -> str:
    """This boot of this machine, and the space that its process numbers are of."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _parts(machine: str) -> tuple[str, str]:
    boot, _, space = machine.partition(" ")
    return boot, space


def _ticks(pid: int) -> str:
    """When the process started; empty where there is none of this number."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return told.rpartition(")")[2].split()[_START]
    except (OSError, IndexError):
        return ""
