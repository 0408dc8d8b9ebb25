"""A run gets SIGINT or SIGTERM at boundaries: it ends with 130 and says what is true, without a traceback."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator

from reliability.crashes.kills import Tally, Trial, is_idle
from reliability.crashes.rooms import leftovers
from reliability.crashes.tracer import Boundary, Run

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130


def signal_everywhere(trial: Trial, tally: Tally, *, every: int) -> None:
    """Send each signal at each `every`-th boundary, and then once more at a later one, as an impatient person does."""
    chance = random.Random(f"{trial.case.name} {trial.way} signals")
    for sent in SIGNALS:
        number = 1 + chance.randrange(every)
        while True:
            seen: list[Boundary] = []
            trial.fresh_room()
            second = number + chance.randrange(1, 6) if chance.random() < 0.3 else 0
            done = trial.run(_sender(sent, number, second, seen))
            if not seen:
                break
            tally.tried += 1
            place = f"{trial.case.name}, {trial.way}, {sent.name} at {seen[0]}" + (" and again" if second else "")
            tally.faults += [f"{place}: {fault}" for fault in _judged(trial, done, tally)]
            number += every


def _sender(sent: signal.Signals, number: int, second: int, seen: list[Boundary]) -> Callable[[Boundary], None]:
    """Send the signal to the process, as a terminal or a scheduler does, not to the thread that is at work."""

    def strike(boundary: Boundary) -> None:
        if not seen and boundary.number >= number and not is_idle(boundary):
            seen.append(boundary)
            os.kill(boundary.process, sent)
        elif seen and boundary.number == second:
            os.kill(boundary.process, sent)

    return strike


def _judged(trial: Trial, done: Run, tally: Tally) -> Iterator[str]:
    state, now = trial.state()
    tally.outcomes[f"{done.code}, {state.split(':')[0]}"] += 1
    left = leftovers(now)
    if "Traceback" in done.said or "Error" in done.said or done.code not in (0, INTERRUPTED):
        yield f"ends with {done.code}: {done.said[-400:]}"
    if state == "before":
        if done.code != INTERRUPTED or "interrupted" not in done.said:
            yield f"{done.code}, though nothing was written: {done.said[-200:]}"
        if any(name not in done.said for name in left if name.endswith(".ckpt-new")) or (
            left and ".ckpt-new" not in "".join(left)
        ):
            yield f"leaves {', '.join(left)} and does not say so: {done.said[-200:]}"
    elif state == "after":
        if done.code == INTERRUPTED and "is written, and whole" not in done.said:
            yield f"says that nothing was written, and it was: {done.said[-200:]}"
        if left:
            yield f"leaves {', '.join(left)}"
    else:
        yield f"the folder is {state}"
    again = trial.run()
    state, now = trial.state()
    if leftovers(now):
        yield f"run again, {again.code}: leaves {', '.join(leftovers(now))}"
    if again.code == 0 and state != "after" and done.code == INTERRUPTED and "whole" not in done.said:
        yield f"run again: {state}"
