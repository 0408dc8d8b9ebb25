"""Two at once: while a run stands at a boundary, others want the same folder, and are refused at once."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from reliability.crashes.calls import FLOCK
from reliability.crashes.cases import CASES, Case, Way
from reliability.crashes.kills import Tally, Trial
from reliability.crashes.rooms import leftovers
from reliability.crashes.tracer import Boundary, run

REFUSED = 3
AT_ONCE = 10.0
"""Seconds that a refusal may take under a tracer on a busy machine."""

NO_LOCKS: Mapping[int, int] = {FLOCK: errno.ENOLCK}


@dataclass(frozen=True)
class Pair:
    """`first` writes; each of `seconds` is a command that wants the same folder meanwhile."""

    what: str
    first: Case
    way: Way
    seconds: tuple[tuple[str, ...], ...]


def _named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


PAIRS = (
    Pair("the same command twice, new folder", _named("graft"), "new folder", ((),)),
    Pair(
        "a new folder, and others into it",
        _named("int8-head"),
        "new folder",
        (("quantize", "{room}/base", "--preset", "experts-int4-g32", "--out", "{room}/out"),),
    ),
    Pair(
        "in place, and in place, a card, hashes, a new folder of that name",
        _named("int8-head"),
        "in place, exchanged",
        (
            (),
            ("ignore", "{room}/export", "add", "x", "--in-place"),
            ("card", "{room}/export"),
            ("manifest", "complete", "{room}/export"),
            ("quantize", "{room}/base", "--preset", "experts-int4-g32", "--out", "{room}/export"),
        ),
    ),
    Pair(
        "a card, and who writes the folder",
        _named("card"),
        "edit",
        ((), ("ignore", "{room}/linked", "add", "x", "--in-place"), ("manifest", "complete", "{room}/linked")),
    ),
)


def both(pair: Pair, template: Path, room: Path, tally: Tally, *, every: int, locks: bool = True) -> None:
    """At each `every`-th boundary at which the first run has its lock, run the others."""
    trial = Trial(pair.first, pair.way, template, room)
    refused = {} if locks else NO_LOCKS
    count = 0

    def strike(boundary: Boundary) -> None:
        nonlocal count
        if _holds_lock(trial):
            count += 1
            if count % every == 1:
                for words in pair.seconds:
                    tally.faults += _refusal(trial, words, boundary, refused, tally)

    trial.fresh_room()
    done = run(trial.arguments, room, strike, refused=refused)
    state, now = trial.state()
    if done.code or state != "after" or leftovers(now):
        tally.faults.append(f"{pair.what}: the first run ends with {done.code}, {state}, {leftovers(now)}")


def _holds_lock(trial: Trial) -> bool:
    lock = trial.room / f".{trial.target.name}.ckpt-lock"
    return lock.exists() and lock.stat().st_size > 0


def _refusal(
    trial: Trial, words: tuple[str, ...], boundary: Boundary, refused: Mapping[int, int], tally: Tally
) -> list[str]:
    tally.tried += 1
    started = time.monotonic()
    arguments = [word.replace("{room}", str(trial.room)) for word in words] or trial.arguments
    second = run(arguments, trial.room, refused=refused)
    seconds = time.monotonic() - started
    place = f"{' '.join(words) or 'the same'} against {trial.case.name} at {boundary}"
    if second.code != REFUSED or seconds > AT_ONCE:
        return [f"{place}: {second.code} after {seconds:.1f} s: {second.said[-300:]}"]
    told = (f"process {boundary.process}", socket.gethostname(), trial.case.words[0], "another run is writing it")
    exists = "already exists" in second.said or trial.state()[0] == "after"  # refused for what the folder is
    if not exists and not all(word in second.said for word in told):
        return [f"{place}: does not say who: {second.said[-400:]}"]
    return []


def taken_over(case: Case, way: Way, template: Path, room: Path, tally: Tally, *, every: int) -> None:
    """Where nothing can be locked: a run whose process is gone holds nothing."""
    trial = Trial(case, way, template, room)
    for number in range(2, trial.boundaries, every):
        tally.tried += 1
        trial.fresh_room()
        run(trial.arguments, room, _killer(number), refused=NO_LOCKS)
        done = run(trial.arguments, room, refused=NO_LOCKS)
        state, now = trial.state()
        if state != "after" or leftovers(now):
            tally.faults.append(
                f"{case.name}, killed at {number} without locks: {done.code}, {state}: {done.said[-300:]}"
            )


def _killer(number: int) -> Callable[[Boundary], None]:
    def strike(boundary: Boundary) -> None:
        if boundary.number == number:
            os.kill(boundary.process, signal.SIGKILL)

    return strike
