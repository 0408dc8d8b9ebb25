"""As `compare.reference`, by compiled kernels where these know the form: several times as fast once they are loaded."""

from __future__ import annotations

from functools import lru_cache
from math import isfinite
from threading import local
from typing import TYPE_CHECKING, NamedTuple

from compare import reference
from compare.measures import Sums
from compare.weights import DENSE, Weight

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from compare.reference import Raw
    from verify.arithmetic import Bytes, Floats

_thread = local()


class _Side(NamedTuple):
    """Numbers by their bytes and what these are, and scale and zero point of each group; (number - zero) * scale."""

    numbers: Bytes
    kind: int
    scale: Floats
    zero: Floats


def measure(a: Weight, raw_a: Raw, b: Weight, raw_b: Raw, rows: int, columns: int) -> Sums:
    """The sums of `rows` rows, whose first divides by 8."""
    import numpy as np

    from compare.kernels import RUN, add_up

    elements = rows * columns
    if not elements or elements % RUN or not _is_known(b, columns):
        return reference.measure(a, raw_a, b, raw_b, rows, columns)
    counts = np.empty(4, np.int64)
    left, right = _side(a, raw_a, rows, columns), _side(b, raw_b, rows, columns)
    error, size, far, largest = add_up(*left, *right, _room(), counts)
    if not (isfinite(error) and isfinite(size)):
        return reference.measure(a, raw_a, b, raw_b, rows, columns)
    differing, zero, lost, ends = counts.tolist()
    found = Sums(elements, differing, error, size, far, largest)
    if b.grid is None:
        return found
    return found + Sums(groups=elements // b.grid.group, zero=zero, lost=lost, codes=elements, saturated=ends)


def _is_known(weight: Weight, columns: int) -> bool:
    """Do the kernels know how it is packed, if it is?"""
    from compare.kernels import RUN

    return weight.grid is None or not (weight.grid.group % RUN or columns * weight.grid.bits % 32)


def _side(weight: Weight, raw: Raw, rows: int, columns: int) -> _Side:
    import numpy as np

    from compare.kernels import BF16, BYTES, F32, NIBBLES

    grid = weight.grid
    if grid is None and weight.parts[DENSE].dtype == "BF16":
        return _Side(raw[DENSE], BF16, *_dense())
    if grid is None or not _is_known(weight, columns):
        return _Side(reference.values(weight, raw, rows, columns).view(np.uint8), F32, *_dense())
    scale, zeros = reference.grid_of(weight, raw, rows)
    middle = np.float32(1 << (grid.bits - 1))
    zero = np.full(scale.size, middle) if zeros is None else (zeros + middle).reshape(-1)
    return _Side(raw["weight_packed"], NIBBLES if grid.bits == 4 else BYTES, scale.reshape(-1), zero)


@lru_cache(maxsize=1)
def _dense() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scale and zero point of numbers that are values."""
    import numpy as np

    return np.ones(1, np.float32), np.zeros(1, np.float32)


def _room() -> NDArray[np.float32]:
    """Memory of the calling thread for the numbers that are unpacked."""
    import numpy as np

    from compare.kernels import CHUNK

    room: NDArray[np.float32] | None = getattr(_thread, "room", None)
    if room is None:
        room = _thread.room = np.empty((2, CHUNK), np.float32)
    return room
