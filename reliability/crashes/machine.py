"""The machine goes down at every flush of a run: what may be left is put on an empty disk, judged, and gone on from."""

from __future__ import annotations

import random
from collections.abc import Iterator

from reliability.crashes.kills import Tally, Trial, state_of
from reliability.crashes.losing import MODELS, crash_points, left, put
from reliability.crashes.recording import recorded
from reliability.crashes.rooms import leftovers

KEPT = (0.0, 1.0, 0.5, 0.2, 0.8)
"""How much of what is unsure is there: nothing, all, and by chance."""


def crash_everywhere(trial: Trial, tally: Tally, *, every: int = 1, again: float = 0.15) -> None:
    """Have the machine go down at each flush, or each `every`-th; a share of the disks is gone on from `again`."""
    recording = recorded(trial)
    points = crash_points(recording)
    chance = random.Random(f"{trial.case.name} {trial.way} machine")
    for point in sorted({*points[chance.randrange(every) :: every], points[-1]}):
        for model in MODELS:
            for kept in KEPT:
                tally.tried += 1
                step = recording.steps[point - 1] if point else "nothing"
                place = f"{trial.case.name}, {trial.way}, {model}, {kept}, down behind {point} {step}"
                put(left(recording, point, model, kept, chance), recording, trial.room)
                ended = point == len(recording.steps)
                faults = list(judged(trial, tally, ended=ended))
                if not faults and chance.random() < again:
                    tally.twice += 1
                    faults = list(run_again(trial))
                tally.faults += [f"{place}: {fault}" for fault in faults]


def judged(trial: Trial, tally: Tally, *, ended: bool) -> Iterator[str]:
    """What is wrong: the target must be the old or the new one, and the new one where the run has `ended`."""
    state, _, faults = state_of(trial, tally)
    yield from faults
    if ended and state != "after":
        yield f"the run said that it was done, and it is {state}"


def run_again(trial: Trial) -> Iterator[str]:
    """What is wrong after the same command ran once more."""
    was = trial.state()[0]
    done = trial.run()
    state, now = trial.state()
    if "Traceback" in done.said or (was != "after" and (done.code or state != "after")):
        yield f"run again: {done.code}, {state}: {done.said[-300:]}"
    if leftovers(now):
        yield f"run again, {done.code}: leaves {', '.join(leftovers(now))}"
