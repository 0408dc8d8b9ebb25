"""How far what is stored of BF16 rows is from the weight that they were made of. Importing this needs numba.

Numba looks at the file of a kernel only to see whether what it kept of it is out of date: after a change to what is
imported here, touch this file.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from verify.intrinsics import as_float, width_of
from verify.kernels import ONE, PAIRS, UPPER, UPPER_HALF, WHOLE, WHOLE_BITS, kernel, part, widened

summing = njit(nogil=True, error_model="numpy", fastmath={"reassoc"})
"""For sums, whose terms may be added in any order."""


@kernel
def distances(pairs: Any, codes: Any, scale: Any, zeros: Any, groups: int, height: int, sums: Any) -> None:
    """Fill `sums` float64 [blocks, 3]: squared norms of what is stored minus the weight, of the weight, and of the
    scales of all weights. The rest is as for `judge`, but that any scale will do."""
    size = len(pairs) // len(scale)
    for block in range(len(sums)):
        line, at = sums[block], block * height * groups
        line[0], line[1], line[2] = 0.0, 0.0, 0.0
        for g in range(at, at + height * groups if at + height * groups < len(scale) else len(scale)):
            step, zero = widened(scale[g]), np.float32(0) if zeros is None else np.float32(zeros[g])
            line[2] += np.float64(step) * np.float64(step) * (2 * size)
            for start in range(g * size, (g + 1) * size, PAIRS):
                error, norm = _norms(pairs[start : start + PAIRS], codes[start : start + PAIRS], step, zero)
                line[0] += error
                line[1] += norm


@summing
def _norms(pairs: Any, codes: Any, scale: Any, zero: Any) -> Any:
    """Squared norms of the error and of the weights; a float has room for as many."""
    bits = width_of(codes)
    mask, middle = np.uint32((1 << bits) - 1), WHOLE + np.float32(1 << (bits - ONE)) + zero
    error, norm = np.float32(0), np.float32(0)
    for i in range(PAIRS):
        pair, both = pairs[i], np.uint32(codes[i])
        left, right = as_float(np.uint32(pair << UPPER)), as_float(np.uint32(pair & UPPER_HALF))
        off = (as_float(np.uint32(np.uint32(both & mask) | WHOLE_BITS)) - middle) * scale - left
        too = (as_float(np.uint32(np.uint32(both >> bits) | WHOLE_BITS)) - middle) * scale - right
        error += off * off + too * too
        norm += left * left + right * right
    return error, norm


@kernel
def tally(pairs: Any, codes: Any, scale: Any, zeros: Any, span: float, places: Any, ends: Any, steps: Any) -> None:
    """Add to `ends` int64 [1] the codes at either end of the grid, to `steps` int64 [4, BINS] the weights by distance.

    The distance is that of what is stored from the weight, in steps, and the bins reach from -span to span; the four
    rows of `steps` add up. `places` int32 [2 * PAIRS] is scratch.
    """
    bits = width_of(codes)
    mask, top = np.uint32((1 << bits) - 1), steps.shape[1] - 1
    middle = WHOLE + np.float32(1 << (bits - ONE))
    reach, share = np.float32(span), np.float32(steps.shape[1] / (2 * span))
    size = len(pairs) // len(scale)
    count = 0
    for start in range(0, len(pairs), PAIRS):
        step = widened(scale[start // size])
        zero = np.float32(0) if zeros is None else np.float32(zeros[start // size])
        here, stored = pairs[start : start + PAIRS], codes[start : start + PAIRS]
        for i in range(PAIRS):
            pair, both = here[i], np.uint32(stored[i])
            left, right = as_float(np.uint32(pair << UPPER)), as_float(np.uint32(pair & UPPER_HALF))
            low, high = np.uint32(both & mask), np.uint32(both >> bits)
            places[i] = _place(low, left, middle + zero, step, reach, share)
            places[PAIRS + i] = _place(high, right, middle + zero, step, reach, share)
            count += (low == 0) + (low == mask) + (high == 0) + (high == mask)
        for i in range(2 * PAIRS):
            place = places[i]
            steps[i % 4, place if place < top else top] += 1
    ends[0] += count


@part
def _place(stored: Any, weight: Any, middle: Any, scale: Any, span: Any, share: Any) -> Any:
    """The bin of a distance, which may be one too far; NaN is in the first."""
    off = ((as_float(np.uint32(stored | WHOLE_BITS)) - middle) * scale - weight) / scale
    off = off if off > -span else -span
    off = off if off < span else span
    return np.int32((off + span) * share)
