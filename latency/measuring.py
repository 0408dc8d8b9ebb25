"""Asking every candidate in turns, several streams at a time."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from checkpoint.errors import CkptError, Problem
from latency.prompts import Prompts, prompts_for
from latency.settings import Candidate, Settings
from latency.turns import Round, tokens_per_second, turn_of
from serving import Ask, Metrics, Server, ServerFault, Stream, speculation

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Failure:
    """A round that a candidate did not finish; it is not asked again in that cell."""

    candidate: str
    number: int
    message: str


@dataclass(frozen=True)
class Cell:
    """All rounds with one length of prompts and one number of streams, by candidate."""

    prompt_tokens: int
    streams: int
    rounds: Mapping[str, tuple[Round, ...]] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True)
class Result:
    """Everything that was measured. `run` is what made the prompts of this run differ from those of any other."""

    candidates: tuple[Candidate, ...]
    settings: Settings
    run: str
    cells: tuple[Cell, ...]

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(failure for cell in self.cells for failure in cell.failures)


def measure(candidates: Sequence[Candidate], settings: Settings, tell: Tell = lambda line: None) -> Result:
    """Measure every cell. Raises ServerFault where a server is not there, declines, or fails before anything counts.

    A candidate that fails later is left out of the rest of that cell, and the failure is in the result.
    """
    for candidate in candidates:
        tell(f"{candidate.name}: {candidate.server.model} on {candidate.server.engine.title} at {candidate.server.url}")
    run = secrets.token_hex(4)
    random = Random(settings.seed)
    prompts = [prompts_for(candidate, settings, run) for candidate in candidates]
    cells: list[Cell] = []
    for tokens in settings.prompt_tokens:
        for streams in settings.streams:
            tell(
                f"{tokens:,} prompt tokens, {streams} at a time: {settings.rounds} rounds, {settings.warmup} unmeasured"
            )
            cells.append(
                _cell(
                    candidates,
                    [lengths[tokens] for lengths in prompts],
                    Cell(tokens, streams),
                    random,
                    strict=not cells,
                )
            )
    return Result(tuple(candidates), settings, run, tuple(cells))


def _cell(
    candidates: Sequence[Candidate], prompts: Sequence[Prompts], cell: Cell, random: Random, *, strict: bool
) -> Cell:
    """`cell`, filled. With `strict`, a candidate that fails before its first round that counts raises ServerFault."""
    settings = prompts[0].settings
    rounds: dict[str, list[Round]] = {candidate.name: [] for candidate in candidates}
    failures: dict[str, Failure] = {}
    for number in range(-settings.warmup, settings.rounds):
        for place, which in enumerate(random.sample(range(len(candidates)), len(candidates))):
            name = candidates[which].name
            if name in failures:
                continue
            asks = [prompts[which].ask(number, stream, which) for stream in range(cell.streams)]
            try:
                done = _round(candidates[which].server, asks, number, place)
            except ServerFault as error:
                if strict and not rounds[name]:
                    raise
                failures[name] = Failure(name, number, str(error))
                continue
            if number >= 0:
                rounds[name].append(done)
    found = {name: tuple(done) for name, done in rounds.items()}
    return replace(cell, rounds=found, failures=tuple(failures.values()))


def _round(server: Server, asks: Sequence[Ask], number: int, place: int) -> Round:
    """One candidate, all streams at once. The engine's metrics are read before and after, outside the clock."""
    before = _metrics(server)
    streams = together(server, asks)
    after = _metrics(server)
    drafts = speculation(server.engine, before, after, server.model) if before and after else None
    return Round(number, place, tuple(turn_of(stream) for stream in streams), tokens_per_second(streams), drafts)


def _metrics(server: Server) -> Metrics | None:
    return server.metrics() if server.engine.speculation else None


def together(server: Server, asks: Sequence[Ask]) -> list[Stream]:
    """All of `asks` at the same moment, each on a connection of its own. Raises the first fault of any."""
    gate = threading.Barrier(len(asks))
    streams: list[Stream | None] = [None] * len(asks)
    faults: list[CkptError] = []

    def one(number: int) -> None:
        gate.wait()
        try:
            streams[number] = server.stream(asks[number])
        except CkptError as error:
            faults.append(error)

    # daemons, so that an interrupt need not wait for answers
    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    done = [stream for stream in streams if stream is not None and stream.tokens]
    if len(done) < len(asks):
        raise ServerFault(Problem("answer-empty", "an answer has no token to time", file=server.url))
    return done
