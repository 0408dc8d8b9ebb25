"""A run of `ckpt` under ptrace: at each call that changes something in a folder, somebody decides what happens.

The process is forked from this one, so that a run costs milliseconds; it is a process of its own, that the kernel ends,
signals and forgets as any other. `fresh` starts an interpreter instead, as a shell does.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from reliability.crashes import ptrace
from reliability.crashes.calls import AT_FDCWD, BY_NUMBER, CALLS, Call
from reliability.crashes.ptrace import Registers
from reliability.forking import be_ckpt

ROOT = Path(__file__).parents[2]
STUCK = 60.0
"""Seconds after which a run is given up."""

HUNG = -1000
"""The code of such a run."""

_WALL = 0x40000000


@dataclass
class Boundary:
    """A call at its beginning: nothing of it has happened yet."""

    number: int
    call: Call
    paths: tuple[str, ...]
    task: int
    process: int
    registers: Registers = field(repr=False)

    def __str__(self) -> str:
        return f"{self.number} {self.call.name} {' '.join(os.path.basename(path) for path in self.paths)}"

    def argument(self, number: int) -> int:
        return self.registers.argument(number)

    def memory(self, address: int, nbytes: int) -> bytes:
        """What the process has at `address`."""
        with open(f"/proc/{self.process}/mem", "rb", buffering=0) as file:
            file.seek(address)
            return file.read(nbytes) or b""

    def halve(self) -> None:
        """Have the call write half of what it was to write."""
        if self.call.nbytes is not None:
            name = ("rdi", "rsi", "rdx", "r10", "r8", "r9")[self.call.nbytes]
            setattr(self.registers, name, max(1, self.argument(self.call.nbytes) // 2))
            ptrace.set_registers(self.task, self.registers)


Strike = Callable[[Boundary], bool | None]
"""Called at each boundary; True: `after` wants to know how the call ended."""


@dataclass(frozen=True)
class Run:
    """How a run ended: `code` as `subprocess` has it, `said` on stdout and stderr, the boundaries there were."""

    code: int
    said: str
    boundaries: int

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


def run(
    arguments: Sequence[str | Path],
    room: Path,
    strike: Strike = lambda boundary: None,
    *,
    after: Callable[[Boundary, int], object] = lambda boundary, result: None,
    refused: Mapping[int, int] | None = None,
    fresh: bool = False,
) -> Run:
    """`ckpt ARGUMENTS`, with `strike` called at each change inside `room`, one at a time.

    `refused` are numbers of calls that the kernel does not know in this run, with their errors.
    """
    with tempfile.TemporaryFile() as output:
        ready, go = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(go)
            _begin(list(map(str, arguments)), ready, output.fileno(), refused or {}, fresh)
        os.close(ready)
        with suppress(PermissionError):  # it is a program of its own by now, and did so itself
            os.setpgid(child, child)
        try:
            ptrace.seize(child)
        finally:
            os.close(go)
        tracing = _Tracing(child, str(room.resolve()), strike, after)
        with _deadline(child) as late:
            code = tracing.follow()
        code = HUNG if late else code
        output.seek(0)
        return Run(code, output.read().decode(errors="replace"), tracing.count)


def can_trace() -> bool:
    """May this process trace its children, as it may not in some containers?"""
    try:
        return run(["--help"], ROOT).code == 0
    except OSError:
        return False


@contextmanager
def _deadline(child: int) -> Iterator[list[int]]:
    """Kill a run that hangs, and say so in the list."""
    late: list[int] = []

    def kill(signum: int, frame: FrameType | None) -> None:
        late.append(signum)
        os.killpg(child, signal.SIGKILL)

    before = signal.signal(signal.SIGALRM, kill)
    signal.setitimer(signal.ITIMER_REAL, STUCK)
    try:
        yield late
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _begin(arguments: list[str], ready: int, output: int, refused: Mapping[int, int], fresh: bool) -> None:
    """What the child does once it is traced."""
    try:
        os.setpgid(0, 0)
        os.read(ready, 1)
        os.close(ready)
        os.chdir(ROOT)
        ptrace.stop_at([call.number for call in CALLS if call.number not in refused], refused)
        if fresh:
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.execv(sys.executable, [sys.executable, "-m", "ckpt", *arguments])
        be_ckpt(arguments, lambda: None, output)
    finally:
        os._exit(98)


class _Tracing:
    """The stops of one run. While one task is in a call that is watched to its end, the others wait at theirs."""

    def __init__(self, child: int, room: str, strike: Strike, after: Callable[[Boundary, int], object]) -> None:
        self._child, self._room, self._strike, self._after = child, room, strike, after
        self._inside: Boundary | None = None
        self._waiting: list[int] = []
        self.count = 0

    def follow(self) -> int:
        """Serve the run to its end; its exit code."""
        code = None
        while True:
            try:
                task, status = os.waitpid(-self._child, _WALL)
            except ChildProcessError:
                return -signal.SIGKILL if code is None else code
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                if task == self._child:
                    code = os.waitstatus_to_exitcode(status)
                continue
            try:
                self._stopped(task, status)
            except ProcessLookupError:  # it was killed while it stood
                continue

    def _stopped(self, task: int, status: int) -> None:
        event, sent = status >> 16, os.WSTOPSIG(status)
        if event == ptrace.SECCOMP_STOP:
            self._entered(task)
        elif sent == signal.SIGTRAP | ptrace.SYSCALL_STOP:
            self._left(task)
        elif event:
            ptrace.request(ptrace.CONT, task)
        else:
            ptrace.request(ptrace.CONT, task, 0, sent)

    def _entered(self, task: int) -> None:
        if self._inside is not None:
            self._waiting.append(task)
            return
        found = ptrace.registers(task)
        call = BY_NUMBER[found.call]
        paths = tuple(path for place in call.places if (path := _path(self._child, found, place)))
        if not any(path == self._room or path.startswith(f"{self._room}/") for path in paths):
            ptrace.request(ptrace.CONT, task)
            return
        self.count += 1
        boundary = Boundary(self.count, call, paths, task, self._child, found)
        if self._strike(boundary):
            self._inside = boundary
            ptrace.request(ptrace.SYSCALL, task)
        else:
            ptrace.request(ptrace.CONT, task)

    def _left(self, task: int) -> None:
        boundary, self._inside = self._inside, None
        if boundary is not None:
            self._after(boundary, ptrace.registers(task).result)
        ptrace.request(ptrace.CONT, task)
        waiting, self._waiting = self._waiting, []
        for other in waiting:
            self._entered(other)


def _path(process: int, found: Registers, place: tuple[str, int]) -> str:
    """The absolute path that an argument names; of a handle its file's, if it has one."""
    kind, number = place
    if kind == "handle":
        return _of_handle(process, found.argument(number))
    folder = "folder" in kind
    text = _text(process, found.argument(number + folder))
    if os.path.isabs(text):
        return os.path.normpath(text)
    handle = found.argument(number) if folder else AT_FDCWD
    handle = handle - (1 << 32) if handle > 1 << 31 else handle
    base = os.readlink(f"/proc/{process}/cwd") if handle == AT_FDCWD else _of_handle(process, handle)
    return os.path.normpath(os.path.join(base, text)) if base else ""


def _of_handle(process: int, handle: int) -> str:
    try:
        path = os.readlink(f"/proc/{process}/fd/{handle & 0xFFFFFFFF}")
    except OSError:
        return ""
    return path if path.startswith("/") else ""


def _text(process: int, address: int) -> str:
    if not address:
        return ""
    with open(f"/proc/{process}/mem", "rb", buffering=0) as file:
        file.seek(address)
        raw = file.read(min(4096, 4096 - address % 4096)) or b""
        if b"\0" not in raw:
            raw += file.read(4096) or b""
    return os.fsdecode(raw.split(b"\0", 1)[0])
