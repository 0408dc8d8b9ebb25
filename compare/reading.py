"""Many pieces of files read in as few calls as they lie in: on the Hub each call is a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from checkpoint import File, Files
from checkpoint.files import scratch

ALIGNED = 64


class Piece(NamedTuple):
    """`nbytes` bytes of a file at `offset`."""

    file: File
    offset: int
    nbytes: int


class _Run(NamedTuple):
    """Bytes [first, end) of a file, which are put at `place`."""

    file: File
    first: int
    end: int
    place: int


def read(files: Files, pieces: Sequence[Piece]) -> list[memoryview]:
    """The bytes of each piece, in memory of the calling thread that its next call hands out again.

    What lies in a file at a multiple of 64 lies in memory so, too. Raises UnreadableCheckpoint.
    """
    order = sorted(range(len(pieces)), key=lambda number: (str(pieces[number].file), pieces[number].offset))
    runs, places, room = _laid_out(pieces, order)
    memory = scratch(room + ALIGNED)
    for file, first, end, place in runs:
        files.read_into(file, first, memory[place : place + end - first])
    return [memory[place : place + piece.nbytes] for place, piece in zip(places, pieces, strict=True)]


def _laid_out(pieces: Sequence[Piece], order: Sequence[int]) -> tuple[list[_Run], list[int], int]:
    """Runs of neighbours, where each piece begins in memory, and how much of that there is."""
    runs: list[_Run] = []
    places = [0] * len(pieces)
    room = 0
    for number in order:
        file, offset, nbytes = pieces[number]
        last = runs[-1] if runs else None
        if last and last.file == file and last.first <= offset <= last.end:
            places[number] = last.place + offset - last.first
            end = max(last.end, offset + nbytes)
            room += end - last.end
            runs[-1] = last._replace(end=end)
            continue
        place = -(-room // ALIGNED) * ALIGNED + offset % ALIGNED
        runs.append(_Run(file, offset, offset + nbytes, place))
        places[number], room = place, place + nbytes
    return runs, places, room
