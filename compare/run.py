"""`compare`: everything that two checkpoints have, beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from checkpoint import (
    Checkpoint,
    Files,
    Place,
    Problem,
    UnreadableCheckpoint,
    default_memory,
    default_workers,
    open_checkpoint,
)
from checkpoint.families import Family, find_family
from checkpoint.folder import without_collection
from compare.contents import Contents
from compare.documents import compare_documents, compare_indexes, compare_side_files
from compare.known import Reason, has_hashes, known_of, reason, share
from compare.pairing import Pair, Pairing, pair_up
from compare.result import Entry, Level, Result
from compare.streaming import Advance
from compare.weights import module_of

Watched = Callable[[int], AbstractContextManager[Advance]]
"""Given the bytes to read, a context that yields what is called as they are read."""

Side = Checkpoint | Place | str


def unwatched(total: int) -> AbstractContextManager[Advance]:
    """For a run that nobody watches."""
    return nullcontext(lambda name, nbytes: None)


def compare(
    a: Side,
    b: Side,
    *,
    level: Level = "full",
    workers: int | None = None,
    memory: int | None = None,
    hashes: bool = True,
    files: Files | None = None,
    watched: Watched = unwatched,
) -> Result:
    """Hold `b` against `a`.

    `level` says what is read of weights: nothing, the first rows of some of each family, or all; `memory` are bytes of
    buffers. With `hashes`, what manifests and the Hub state is believed where it says that bytes are equal. `files`
    reads, where it should be another's. Raises UnreadableCheckpoint with all that is wrong with either, Refused where
    the memory is too small for their rows.
    """
    ours, theirs = open_both(a, b)
    with without_collection(), files or Files() as reader:
        pairing = pair_up(ours, theirs)
        known = _known(ours, theirs, pairing, hashes=hashes)
        todo = [pair for pair in pairing.pairs if pair.name not in known]
        contents = Contents(reader, todo, level, workers or default_workers(), memory or default_memory())
        with watched(contents.nbytes) as advance:
            contents.read(advance)
        family = find_family(ours.config) or find_family(theirs.config)
        return Result(
            a=str(ours.root),
            b=str(theirs.root),
            level=level,
            entries=tuple(_entry(pair, known, contents, family) for pair in pairing.pairs),
            removed=pairing.removed,
            added=pairing.added,
            side_files=tuple(compare_side_files(ours.side_files, theirs.side_files)),
            config=compare_documents(ours.config_document, theirs.config_document),
            index=compare_indexes(ours, theirs),
            read=contents.done,
            known=share((pair, known[pair.name]) for pair in pairing.pairs if pair.name in known),
        )


def open_both(a: Side, b: Side) -> tuple[Checkpoint, Checkpoint]:
    """Both checkpoints. Raises UnreadableCheckpoint with all that is wrong with either."""
    found: list[Checkpoint] = []
    problems: list[Problem] = []
    for side in (a, b):
        try:
            found.append(side if isinstance(side, Checkpoint) else open_checkpoint(side))
        except UnreadableCheckpoint as error:
            problems += (_placed(problem, str(side)) for problem in error.problems)
    if problems:
        raise UnreadableCheckpoint(problems, "cannot compare")
    return found[0], found[1]


def _placed(problem: Problem, place: str) -> Problem:
    """A problem that says on which side it is."""
    inside = "" if problem.file in (None, place) else f": {problem.file}"
    return replace(problem, file=place + inside)


def _known(a: Checkpoint, b: Checkpoint, pairing: Pairing, *, hashes: bool) -> dict[str, Reason]:
    """The weights that are known to be equal, each with the reason."""
    hashes = hashes and has_hashes(a) and has_hashes(b)
    ours, theirs = known_of(a, hashes=hashes), known_of(b, hashes=hashes)
    reasons = ((pair.name, reason(pair, ours, theirs)) for pair in pairing.pairs)
    return {name: why for name, why in reasons if why}


def _entry(pair: Pair, known: Mapping[str, Reason], contents: Contents, family: Family | None) -> Entry:
    kind = family.kind(module_of(pair.name)) if family else None
    if pair.name in known:
        return Entry(pair, "equal", kind)
    state, sums, why = contents.verdict(pair)
    return Entry(pair, state, kind, sums, why)
