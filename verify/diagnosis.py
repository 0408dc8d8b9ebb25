"""Why a packed module is not what it should be: the likely causes, each tried on a few rows.

A cause is believed when undoing it brings what is stored much nearer to the weight. On a sound module every one of them
does the opposite, so the cheap ones are tried on modules within bounds, too: shifted scales may stay within any bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from checkpoint import TensorRef
from verify.arithmetic import unpack_rows, values_of
from verify.blocks import ELEMENTS, ROWS
from verify.case import Case
from verify.recompute import FARTHEST, Job
from verify.reference import Block, read_block, relative_error

if TYPE_CHECKING:
    from verify.arithmetic import Floats

TRIED_ROWS = 4 * ROWS
SPARED = 4
"""A cause is tried on one row in so many first: what does not help these does not help all."""

SEARCHES = 8
"""Modules for which every other expert and layer of the base is tried."""

MUCH_NEARER = 0.75
"""Undoing the right cause leaves at most this part of the error; shifted scales of even weights leave the most."""

NEARER = 0.9
"""On a few rows it leaves at most this part."""

SISTERS = {
    "gate_proj": "up_proj",
    "up_proj": "gate_proj",
    "k_proj": "v_proj",
    "v_proj": "k_proj",
    "w1": "w3",
    "w3": "w1",
}
"""Modules of one shape that exporters have taken for each other."""


EXPERT_NUMBER = re.compile(r"(.*\.experts\.)(\d+)\.")
LAYER_NUMBER = re.compile(r"(.*?\blayers\.)(\d+)\.")


class Cause(NamedTuple):
    """Why a module is wrong, in words; `taken` where it is another weight of the base, rightly packed."""

    text: str
    taken: bool = False


@dataclass
class Doctor:
    """Finds causes, and counts for how many modules the base was searched."""

    case: Case
    searches: int = 0
    lock: Lock = field(default_factory=Lock)

    def suspicion(self, job: Job, rows: tuple[int, int]) -> Cause | None:
        """A cause that can be told from the module alone."""
        block = read_block(self.case, job, job.origin, _few(rows))
        few = block.every(SPARED)
        error, few_error = relative_error(block.values, block.weight), relative_error(few.values, few.weight)
        for cause, undo in UNDOINGS:
            # Of a calibrated model every module comes here, and nothing helps any of them.
            if not any(relative_error(values, few.weight) < NEARER * few_error for values in undo(few)):
                continue
            if any(_cures(values, block.weight, error) for values in undo(block)):
                return Cause(cause)
        return None

    def cause(self, job: Job, rows: tuple[int, int]) -> Cause:
        """The likely cause in words; where none is found, whether there is any relation to the weight at all."""
        found = self.suspicion(job, rows)
        if found is not None:
            return found
        block = read_block(self.case, job, job.origin, _few(rows))
        values = block.values
        error = relative_error(values, block.weight)
        if self._is_transposed(job, rows, values, error):
            return Cause("is the base's weight transposed", taken=True)
        for cause, origin in self._others(job):
            if _cures(values, read_block(self.case, job, origin, _few(rows)).weight, error):
                return Cause(cause, taken=True)
        return Cause(_relation(values, block.weight))

    def _is_transposed(self, job: Job, rows: tuple[int, int], values: Floats, error: float) -> bool:
        """Of a square weight: is it its transpose? Rows of the one are columns of the other, read a block at a time."""
        import numpy as np

        start, end = _few(rows)
        side = job.origin.shape[0]
        if job.origin.shape != (side, side):
            return False
        height = max(ROWS, ELEMENTS // side // ROWS * ROWS)
        blocks = [(first, min(first + height, side)) for first in range(0, side, height)]
        columns = [read_block(self.case, job, job.origin, block).weight[:, start:end] for block in blocks]
        return _cures(values, np.concatenate(columns).T, error)

    def _others(self, job: Job) -> Iterator[tuple[str, TensorRef]]:
        """Weights of the base that may have been taken for the right one, the likeliest first."""
        yield from self._origins(_sisters(job.name), job)
        if self._may_search():
            yield from self._origins(_strangers(job.name, self.case.weights), job)

    def _origins(self, candidates: Iterable[tuple[str, str]], job: Job) -> Iterator[tuple[str, TensorRef]]:
        for cause, name in candidates:
            wanted = self.case.weights.get(name)
            if wanted and wanted.origin and wanted.shape == job.origin.shape:
                yield cause, wanted.origin

    def _may_search(self) -> bool:
        with self.lock:
            self.searches += 1
            return self.searches <= SEARCHES


def _few(rows: tuple[int, int]) -> tuple[int, int]:
    return rows[0], min(rows[1], rows[0] + TRIED_ROWS)


def _cures(values: Floats, weight: Floats, error: float) -> bool:
    left = relative_error(values, weight)
    return left <= FARTHEST and left < MUCH_NEARER * error


def _relation(values: Floats, weight: Floats) -> str:
    """Of weights that no known cause explains."""
    import numpy as np

    size = float(np.linalg.norm(values)) * float(np.linalg.norm(weight))
    likeness = float(np.vdot(values, weight)) / size if size else 0.0
    if likeness > 0.5:
        return "resembles the base's weight, as another revision of it would"
    return "has nothing to do with the base's weight"


def _sisters(name: str) -> Iterator[tuple[str, str]]:
    parent, _, leaf = name.rpartition(".")
    if leaf in SISTERS:
        yield f"is {SISTERS[leaf]} of the base", f"{parent}.{SISTERS[leaf]}"


def _strangers(name: str, weights: Container[str]) -> Iterator[tuple[str, str]]:
    """The same module of every other expert of its layer, then of every other layer."""
    for pattern, cause in (
        (EXPERT_NUMBER, "is expert {} of the base"),
        (LAYER_NUMBER, "is that of layer {} of the base"),
    ):
        match = pattern.match(name)
        for number in count() if match else ():
            other = f"{name[: match.end(1)]}{number}{name[match.end(2) :]}" if match else name
            if other not in weights:
                break
            if other != name:
                yield cause.format(number), other


def _reversed_words(block: Block) -> Iterator[Floats]:
    per_word = 32 // block.grid.bits
    words = unpack_rows(block.packed, block.grid.bits, block.packed.shape[1] * 8 // block.grid.bits)
    codes = words.reshape(-1, per_word)[:, ::-1].reshape(len(block.packed), -1)[:, : block.weight.shape[1]]
    yield values_of(codes, block.scale, block.zeros, block.grid.group)


def _swapped_nibbles(block: Block) -> Iterator[Floats]:
    import numpy as np

    if block.grid.bits == 4:
        swapped = (block.packed << np.uint8(4)) | (block.packed >> np.uint8(4))
        codes = unpack_rows(swapped, 4, block.weight.shape[1])
        yield values_of(codes, block.scale, block.zeros, block.grid.group)


def _twos_complement(block: Block) -> Iterator[Floats]:
    """Read with the offset, q stored as q mod 2^b reads as q - 2^(b-1), or q + 2^(b-1) where q is negative."""
    import numpy as np

    half = np.int16(1 << (block.grid.bits - 1))
    codes = (
        (block.codes + half) ^ half
    ) - half  # one bit of what is stored tells which; several times as fast as where
    yield values_of(codes, block.scale, block.zeros, block.grid.group)


def _shifted_scales(block: Block) -> Iterator[Floats]:
    import numpy as np

    for step in (1, -1) if block.scale.shape[1] > 2 else ():
        yield values_of(block.codes, np.roll(block.scale, step, axis=1), block.zeros, block.grid.group)


def _zero_points(block: Block) -> Iterator[Floats]:
    import numpy as np

    half = 1 << (block.grid.bits - 1)
    zeros = np.zeros_like(block.scale) if block.zeros is None else block.zeros
    reverted = () if block.zeros is None else (-zeros, np.zeros_like(zeros))
    for other in (zeros + 1, zeros - 1, zeros + half, zeros - half, *reverted):
        yield values_of(block.codes, block.scale, other, block.grid.group)


def _factor(block: Block) -> Iterator[Floats]:
    import numpy as np

    size = float(np.vdot(block.values, block.values))
    if size:
        yield block.values * np.float32(np.vdot(block.values, block.weight) / size)


UNDOINGS: tuple[tuple[str, Callable[[Block], Iterator[Floats]]], ...] = (
    ("holds the values of each word in reverse order", _reversed_words),
    ("holds the nibbles of each byte swapped", _swapped_nibbles),
    ("holds two's complement instead of offset values", _twos_complement),
    ("has its scales shifted by one group", _shifted_scales),
    ("has its zero points or values off by a constant", _zero_points),
    ("has its scales off by a constant factor", _factor),
)
