"""A run is killed at every boundary in turn, and judged each time; then the same command is run again."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from checkpoint import CkptError, open_checkpoint
from checkpoint.recovery import undo_path
from reliability.crashes.cases import Case, Way, refused_calls
from reliability.crashes.rooms import (
    Room,
    copied,
    differing,
    finished_shards,
    leftovers,
    same,
    taken,
    touched,
    without_leftovers,
)
from reliability.crashes.tracer import Boundary, Run, run

TORN = ("write", "pwrite", "copy_file_range")
"""Calls that are also killed in the middle: half of their bytes are written, then the process dies."""

EMPTY = ("sync_file_range",)
"""Calls that change nothing that a kill could lose, and come by the hundred."""


@dataclass
class Tally:
    """What was tried and what went wrong, one line for each fault."""

    tried: int = 0
    torn: int = 0
    fresh: int = 0
    undone: int = 0
    kept: int = 0
    twice: int = 0
    faults: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def survived(self) -> int:
        return max(0, self.tried - len({fault.partition(": ")[0] for fault in self.faults}))


class Trial:
    """One command in one way: the room as it was, and as an undisturbed run leaves it."""

    def __init__(self, case: Case, way: Way, template: Path, room: Path) -> None:
        self.case, self.way, self.template, self.room = case, way, template, room
        self.arguments = case.arguments(room, way)
        self.target = case.target(room, way)
        self.before = self.fresh_room()
        done = self.run()
        if done.code:
            raise RuntimeError(f"{case.name}, {way}: {done.said}")
        self.boundaries = done.boundaries
        self.after = taken(room)
        self.besides = self.target.name
        if leftovers(self.after):
            raise RuntimeError(f"{case.name}, {way}: leaves {leftovers(self.after)}")

    def fresh_room(self) -> Room:
        copied(self.template, self.room)
        return taken(self.room)

    def run(
        self,
        strike: Callable[[Boundary], bool | None] = lambda boundary: None,
        after: Callable[[Boundary, int], object] = lambda boundary, result: None,
        *,
        fresh: bool = False,
    ) -> Run:
        refused = refused_calls(self.way)
        return run(self.arguments, self.room, strike, after=after, refused=refused, fresh=fresh)

    def state(self) -> tuple[str, Room]:
        """ "before" or "after", or what differs from both; and the room. A half-done replacing is undone by opening."""
        now = taken(self.room)
        clean = without_leftovers(now)
        if same(clean, self.before):
            return "before", now
        if same(clean, self.after):
            return "after", now
        one, other = differing(clean, self.before), differing(clean, self.after)
        return f"neither: {', '.join(one[:3])} not as before, {', '.join(other[:3])} not as after", now

    def is_between(self, state: str) -> bool:
        """A card and the manifest that vouches for it are two files: is the manifest alone new?"""
        manifest, card = (f"{self.case.source}/{name}" for name in ("ckpt.manifest.json", "README.md"))
        return self.case.name == "card" and state == f"neither: {manifest} not as before, {card} not as after"

    def must_undo(self) -> bool:
        return (undo_path(self.target) / "record.json").exists()


def kill_everywhere(trial: Trial, tally: Tally, *, every: int = 1, fresh_every: int = 0, torn: bool = True) -> None:
    """Kill the run at each boundary, or at each `every`-th; writes in the middle as well.

    Every `fresh_every`-th time the process is an interpreter of its own.
    """
    chance = random.Random(f"{trial.case.name} {trial.way}")
    number = 1 + chance.randrange(every)
    while True:
        seen: list[Boundary] = []
        fresh = bool(fresh_every) and number % fresh_every == 0
        before = trial.fresh_room()
        done = trial.run(_killer(number, seen), fresh=fresh)
        if not seen:
            return
        place = f"{trial.case.name}, {trial.way}, killed at {seen[0]}"
        tally.fresh += fresh
        _judge(trial, before, done, place, tally, chance)
        if torn and seen[0].call.name in TORN:
            seen = []
            before = trial.fresh_room()
            done = trial.run(_tearer(number, seen), _die)
            if seen:
                tally.torn += 1
                _judge(trial, before, done, f"{place} half done", tally, chance)
        number += every


def _killer(number: int, seen: list[Boundary]) -> Callable[[Boundary], None]:
    """Kill at the first boundary from `number` on that is worth it."""

    def strike(boundary: Boundary) -> None:
        if not seen and boundary.number >= number and not is_idle(boundary):
            seen.append(boundary)
            os.kill(boundary.process, signal.SIGKILL)

    return strike


def is_idle(boundary: Boundary) -> bool:
    """Will the call change nothing: an advice, a folder that is there, a name that is not?"""
    name, paths = boundary.call.name, boundary.paths
    return (
        name in EMPTY
        or (name == "mkdir" and os.path.isdir(paths[0]))
        or (name in ("unlink", "rmdir") and not os.path.lexists(paths[0]))
    )


def _tearer(number: int, seen: list[Boundary]) -> Callable[[Boundary], bool]:
    """Have the write at `number`, or the first one behind it, do half of its work, and be told of its end."""

    def strike(boundary: Boundary) -> bool:
        if seen or boundary.number < number or boundary.call.name not in TORN:
            return False
        seen.append(boundary)
        boundary.halve()
        return True

    return strike


def _die(boundary: Boundary, result: int) -> None:
    os.kill(boundary.process, signal.SIGKILL)


def _judge(trial: Trial, before: Room, done: Run, place: str, tally: Tally, chance: random.Random) -> None:
    """What the kill left; then what the same command makes of it."""
    tally.tried += 1
    if not done.killed:
        tally.faults.append(f"{place}: ended with {done.code}: {done.said[-300:]}")
        return
    tally.faults += [f"{place}: {fault}" for fault in _after_kill(trial, before, tally)]
    kept = finished_shards(trial.room, trial.target)
    tally.kept += len(kept)
    state = trial.state()[0]
    if chance.random() < 0.2 and state == "before":
        trial.run(_killer(1 + chance.randrange(trial.boundaries), []))
        tally.twice += 1
        kept = {} if trial.must_undo() else finished_shards(trial.room, trial.target)  # else they were being moved
    tally.faults += [f"{place}: {fault}" for fault in _after_rerun(trial, before, kept)]


def state_of(trial: Trial, tally: Tally) -> tuple[str, Room, list[str]]:
    """What the target is, all that lies there, and what is wrong with it: it must be the old one, the new one, or be
    made the old one by who opens it."""
    faults = []
    if trial.must_undo():
        tally.undone += 1
        try:
            open_checkpoint(trial.target)
        except CkptError as error:
            faults.append(f"what was half done cannot be undone: {error}")
    state, now = trial.state()
    tally.outcomes[state.split(":")[0]] += 1
    if state not in ("before", "after") and not trial.is_between(state):
        faults.append(f"the folder is {state}")
    return state, now, faults


def _after_kill(trial: Trial, before: Room, tally: Tally) -> Iterator[str]:
    undo = trial.must_undo()
    state, now, faults = state_of(trial, tally)
    yield from faults
    for name in touched(before, now, trial.besides)[:3]:
        yield f"{name} was touched"
    if state == "before" and not undo:
        moved = [name for name, entry in before.items() if not entry.is_folder and now[name] != entry]
        if moved:
            yield f"{', '.join(moved[:3])}: the same bytes in another file"
    if trial.way != "new file" and trial.target.exists():
        try:
            open_checkpoint(trial.target)
        except CkptError as error:
            yield f"the target cannot be opened: {error}"


def _after_rerun(trial: Trial, before: Room, kept: dict[str, tuple[int, int]]) -> Iterator[str]:
    was = trial.state()[0]
    done = trial.run()
    state, now = trial.state()
    if was == "after":  # killed behind its publication: the same command may refuse, or do its work once more
        if "Traceback" in done.said or (trial.way == "new folder" and state != "after"):
            yield f"run again on what was done already: {done.code}, {state}: {done.said[-300:]}"
    elif done.code or state != "after":
        yield f"run again: {done.code}, {state}: {done.said[-300:]}"
    else:
        again = [name for name, identity in kept.items() if now[f"{trial.besides}/{name}"].identity != identity]
        if again:
            yield f"{', '.join(again)}: finished, and written again"
    if leftovers(now):
        yield f"run again, {done.code}: leaves {', '.join(leftovers(now))}"
    for name in touched(before, now, trial.besides)[:3]:
        yield f"run again: {name} was touched"
