"""The weights that have to be read, and what came of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from types import ModuleType

from checkpoint import Files, Problem, Refused, RemoteFile
from checkpoint.plan import READERS
from compare import compiled, reference
from compare.grouping import family_of
from compare.judging import Found, Task, nbytes_of
from compare.measures import Sums
from compare.pairing import Pair
from compare.result import Level, State
from compare.spans import ROWS, Span, buffer_of, elements_for, spans_of
from compare.streaming import Advance, judged
from verify.compiled import is_worth

SAMPLES = 4
"""Weights of a family that the level `sample` looks at, as `ckpt verify` does."""

Verdict = tuple[State, Sums | None, str | None]
"""What became of a weight, its sums if it changed and could be measured, and why it could not."""


@dataclass
class _Heard:
    """What is known of a pair so far: its `sums`, and the spans whose bytes are equal."""

    sums: Sums = field(default_factory=Sums)
    equal: list[Span] = field(default_factory=list)
    differs: bool = False
    is_misshapen: bool = False

    def take(self, task: Task, found: Found) -> None:
        if found.sums is not None:
            self.sums += found.sums
        if found.is_equal and not task.is_known:
            self.equal.append(task.span)
        self.differs |= not found.is_equal
        self.is_misshapen |= found.is_misshapen


class Contents:
    """Reads `pairs` in the order of the files of their left sides. `nbytes` is what is to be read, `done` what was."""

    def __init__(self, files: Files, pairs: Sequence[Pair], level: Level, workers: int, memory: int) -> None:
        self._files = files
        self._level = level
        readable = [pair for pair in pairs if pair.is_same_form or pair.why is None]
        self._pairs = sorted(_chosen(readable, level), key=_place)
        self._workers = max(workers, READERS) if any(map(_is_remote, self._pairs)) else workers
        self._elements = elements_for(memory, self._workers)
        self._heard: dict[str, _Heard] = {}
        self.done = 0
        _refuse_wide(self._pairs, memory, self._workers)
        self.nbytes = sum(nbytes_of(task) for task in self._tasks()) if level == "sample" else _total(self._pairs)

    def read(self, advance: Advance) -> None:
        """Judge all, then measure what was equal in those that differ elsewhere. Raises UnreadableCheckpoint."""
        weights = sum(prod(pair.a.shape or ()) for pair in self._pairs)
        by = compiled if self._level == "full" and is_worth(weights) else reference
        self._run(self._tasks(), by, advance)
        changed = [
            self._heard[pair.name] for pair in self._pairs if self.verdict(pair)[0] == "changed" and not pair.why
        ]
        rest = [Task(span, is_known=True) for heard in changed for span in heard.equal]
        self._run(iter(rest), by, lambda name, nbytes: None)

    def verdict(self, pair: Pair) -> Verdict:
        """What became of any pair, chosen or not."""
        if pair.why and not pair.is_same_form:
            return "changed", None, pair.why
        heard = self._heard.get(pair.name)
        if heard is None:
            return "not read", None, None
        if not heard.differs:
            return "equal", None, None
        if pair.why:
            return "changed", None, pair.why
        if heard.is_misshapen:
            return "changed", heard.sums, "weight_shape differs"
        return ("changed", heard.sums, None) if heard.sums.differing else ("equal in value", None, None)

    def _tasks(self) -> Iterator[Task]:
        for pair in self._pairs:
            spans = spans_of(pair, self._elements)
            yield from (Task(span) for span in ([next(spans)] if self._level == "sample" else spans))

    def _run(self, tasks: Iterator[Task], by: ModuleType, advance: Advance) -> None:
        def read(name: str, nbytes: int) -> None:
            self.done += nbytes
            advance(name, nbytes)

        for task, found in judged(self._files, tasks, by, self._workers, read):
            self._heard.setdefault(task.span.pair.name, _Heard()).take(task, found)


def _chosen(pairs: list[Pair], level: Level) -> list[Pair]:
    """All at level `full`, none at `headers`, else the first, the last and a few between of each family."""
    if level == "full":
        return pairs
    families: dict[str, list[Pair]] = {}
    for pair in pairs if level == "sample" else ():
        families.setdefault(family_of(pair.name), []).append(pair)
    return [pair for family in families.values() for pair in _spread(family)]


def _spread(pairs: list[Pair]) -> list[Pair]:
    if len(pairs) <= SAMPLES:
        return pairs
    return [pairs[position * (len(pairs) - 1) // (SAMPLES - 1)] for position in range(SAMPLES)]


def _is_remote(pair: Pair) -> bool:
    """Is it read by requests, which take their time however little they ask for?"""
    return any(isinstance(ref.path, RemoteFile) for side in (pair.a, pair.b) for ref in side.parts.values())


def _place(pair: Pair) -> tuple[str, int]:
    first = next(iter(pair.a.parts.values()))
    return str(first.path), first.offset


def _total(pairs: Sequence[Pair]) -> int:
    return sum(pair.nbytes for pair in pairs)


def _refuse_wide(pairs: Sequence[Pair], memory: int, workers: int) -> None:
    """Raise Refused where `ROWS` rows of some weight, which are read at a time, do not fit in the memory."""
    widest = max(pairs, key=lambda pair: pair.matrix[1], default=None)
    if widest is None or buffer_of(widest.matrix[1] * ROWS) * workers <= memory:
        return
    found = f"{ROWS} rows of {widest.matrix[1]:,} weights on {workers} threads do not fit in {memory:,} bytes"
    least = buffer_of(widest.matrix[1] * ROWS)
    expected = f"--memory of at least {least * workers:,}, or fewer --workers"
    raise Refused(Problem("memory-small", found, tensor=widest.name, expected=expected), "refused")
