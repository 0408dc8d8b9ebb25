"""Small files that are much when they are read, and large ones: deep, wide, long, doubled, referring to themselves.

Each is given to the command that reads it, in a process of its own. That must end with words instead of a traceback,
within SECONDS of processor time and so much memory for each byte of input.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reliability.fuzzing.ground import LLAMA, written
from reliability.fuzzing.target import expect
from reliability.hostile.explosives import BOMBS, Bomb
from reliability.hostile.trial import Trial

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
BASE = 256 << 20
PER_BYTE = 45
"""Bytes of memory for each byte of input, beside BASE: an empty list is two characters and 64 bytes."""

PATIENCE = 900
"""Seconds on the clock, on a machine that has other things to do."""

_CODE = """
import sys, time
log = open({log!r}, "w")
sys.argv[0] = "ckpt"
from ckpt.__main__ import main
try:
    main()
finally:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(time.process_time(), int(peak.split()[1]) * 1024, file=log, flush=True)
"""


@dataclass(frozen=True)
class Cost:
    """What it took: processor time, memory at its peak, and the bytes of the input."""

    seconds: float
    peak: int
    nbytes: int


def trials(scale: float = 1.0, costs: list[Cost] | None = None) -> Iterator[Trial]:
    """All of them, in a size of `scale`; what each took is added to `costs`."""
    for bomb in BOMBS:
        yield Trial(bomb.name, _trial(bomb, scale, costs), PATIENCE)


def _trial(bomb: Bomb, scale: float, costs: list[Cost] | None) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        model = written(room / "model", LLAMA)
        bomb.fill(model, scale)
        words = [word.format(model=model, room=room) for word in bomb.words]
        done, cost = measured(words, room, _size(model))
        if costs is not None:
            costs.append(cost)
        expect("Traceback" not in done.stderr, f"a traceback: {done.stderr[-300:]}")
        expect(done.returncode in (0, 1, 2, 3), f"ends with {done.returncode}: {done.stderr[-200:]}")
        expect(cost.seconds <= SECONDS, f"took {cost.seconds:.0f} s")
        expect(cost.peak <= BASE + PER_BYTE * cost.nbytes, f"took {cost.peak:,} bytes for {cost.nbytes:,}")
        expect(
            len(done.stdout) + len(done.stderr) < 1 << 20, f"says {len(done.stdout) + len(done.stderr):,} characters"
        )

    return run


def _size(model: Path) -> int:
    return sum(path.stat().st_size for path in model.rglob("*") if path.is_file())


def measured(words: Sequence[str], room: Path, nbytes: int) -> tuple[subprocess.CompletedProcess[str], Cost]:
    """Run `ckpt` and see what it takes."""
    log = room / "cost"
    command = [sys.executable, "-P", "-c", _CODE.format(log=str(log)), *words]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command,
        cwd=room,
        env=surroundings,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE,
        check=False,
    )
    expect(log.exists(), f"was killed: {done.returncode} {done.stderr[-200:]}")
    seconds, peak = log.read_text().split()
    return done, Cost(float(seconds), int(peak), nbytes)
