"""Whole processes, timed one after another in turns, with their peak memory and the bytes they read and wrote."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
LAUNCH = Path(__file__).with_name("launch.py")

ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
"""Every contender computes on the CPU and reaches no network."""

SPARE = 512 << 20
"""Bytes of memory that a contender gets beyond what it moves."""

PLAIN = ("--no-hash", "--no-verify")
"""Options of a command that writes, to do no more than `cp` and other tools do."""

Role = Literal["ours", "peer", "floor", "reference"]


@dataclass(frozen=True)
class Contender:
    """A command to time. `nbytes` is what it has to move, for its speed; `most` bounds its repeats; `prepare` and
    `clean` run untimed before and after each. One that is `timed_inside` prints `{"seconds": ...}` last: the time of
    the call itself, imports and a small first call apart."""

    name: str
    role: Role
    command: tuple[str, ...]
    prepare: Callable[[], None] = lambda: None
    clean: Callable[[], None] = lambda: None
    nbytes: int = 0
    codes: frozenset[int] = frozenset({0})
    most: int | None = None
    timed_inside: bool = False
    tags: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One run of a command. `peak` is the resident memory of its largest process in bytes; `read` and `written` are
    bytes moved by system calls of all its processes (mapped pages are not among them)."""

    seconds: float
    peak: int
    read: int
    written: int
    code: int
    output: str

    @property
    def seconds_inside(self) -> float:
        """What a contender that is timed inside printed."""
        return float(json.loads(self.output.splitlines()[-1])["seconds"])


class CommandFailed(Exception):
    """A command ended with a code that it should not."""


def python(module: str, *arguments: str | Path) -> tuple[str, ...]:
    """The command that runs `module` in this interpreter."""
    return (sys.executable, "-m", module, *map(str, arguments))


def ckpt(*arguments: str | Path) -> tuple[str, ...]:
    return python("ckpt", *arguments)


def shell(script: str, *arguments: str | Path) -> tuple[str, ...]:
    """A shell command in which "$1", "$2", ... are `arguments`."""
    return ("sh", "-ec", script, "sh", *map(str, arguments))


def readable(command: Sequence[str], work: Path) -> str:
    """The command as a person would type it, without the paths of this machine."""
    return shlex.join(command).replace(str(work), "WORK").replace(sys.executable, "python")


def run(command: Sequence[str], codes: frozenset[int] = frozenset({0})) -> Run:
    """Run `command` in the project's root. Raises CommandFailed, with the end of what it printed."""
    with tempfile.NamedTemporaryFile() as report, tempfile.TemporaryFile() as output:
        launcher = (sys.executable, "-I", "-S", str(LAUNCH), report.name)
        environment = os.environ | ENVIRONMENT
        subprocess.run(
            (*launcher, *command), cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, check=True
        )
        output.seek(0)
        text = output.read().decode(errors="replace")
        found = Run(output=text, **json.load(report))
    if found.code not in codes:
        raise CommandFailed(f"{shlex.join(command)}\nended with {found.code}:\n{text[-2000:]}")
    return found


def in_turns(
    contenders: Sequence[Contender], repeats: int, inputs: Sequence[Path] = ()
) -> tuple[dict[str, list[Run]], list[str]]:
    """Runs by the name of the contender, and what failed among those that are not ours.

    Each repeat runs every contender once, beginning with another one each time, with `inputs` read into the page cache,
    pending writes on disk, and memory at hand. Raises CommandFailed where ours fails.
    """
    runs: dict[str, list[Run]] = {contender.name: [] for contender in contenders}
    failed: dict[str, str] = {}
    for repeat in range(repeats):
        first = repeat % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            if contender.name in failed or (contender.most is not None and repeat >= contender.most):
                continue
            contender.prepare()
            read_through(inputs)
            os.sync()
            touch_memory(contender.nbytes + SPARE)
            try:
                runs[contender.name].append(run(contender.command, contender.codes))
            except CommandFailed as error:
                if contender.role == "ours":
                    raise
                failed[contender.name] = str(error)
            contender.clean()
    return runs, list(failed.values())


def read_through(paths: Sequence[Path]) -> None:
    """Bring files into the page cache, as far as it holds them."""
    if paths:
        subprocess.run(["cat", *map(str, paths)], stdout=subprocess.DEVNULL, check=True)


def touch_memory(nbytes: int) -> None:
    """Use and free memory, half of what is available at most.

    In a virtual machine a page that was never used, or was handed back, costs its first user several times a `cp`: who
    comes after a large file was deleted would seem faster than who comes after one was written.
    """
    size = min(nbytes, available_memory() // 2)
    code = (
        "import mmap, sys; mmap.mmap(-1, int(sys.argv[1]), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code, str(size)], check=True)


def available_memory() -> int:
    """Bytes that processes and the page cache may take."""
    text = Path("/proc/meminfo").read_text()
    return 1024 * int(next(row for row in text.splitlines() if row.startswith("MemAvailable:")).split()[1])


def forget(paths: Sequence[Path]) -> None:
    """Take files out of the page cache; what is not on disk yet is written first."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def resident(paths: Sequence[Path]) -> int | None:
    """Bytes of `paths` in the page cache, read or mapped, by whom ever; None without util-linux's `fincore`."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, paths)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return sum(int(line) for line in said.stdout.split())
