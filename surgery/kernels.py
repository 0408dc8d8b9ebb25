"""RTN and packing of BF16 rows in one pass over the cache. Importing this needs numba.

The same bits as `quantize_rows` and `pack_rows`, which are the reference. A BF16 value is the upper half of a 32-bit
float: magnitudes compare as integers, and rounding to BF16 is an integer addition.

A quotient x / scale is taken as x * (1 / scale), three units in the last place off at most. That is exact enough: both
have 8-bit significands, so a quotient up to 2**8 that is not halfway between two integers is 2**-10 away from there at
least, and one that is not halfway between two BF16 values 2**-17 of itself; halfway between BF16 values none ever is.
What is nearly halfway between two integers is made so by rounding to a multiple of 2**-12 first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

ROUND = np.float32(12582912.0)
"""1.5 * 2**23: added to |y| < 2**22 it leaves y, rounded half to even, in the low bits of the sum."""

GRID = np.float32(3072.0)
"""1.5 * 2**11: added to |y| < 2**10 it rounds y to a multiple of 2**-12."""

INFINITY = np.uint32(0x7F80)
EPS = np.uint32(0x3C00)
"""BF16 bits of 2**-7, the scale of a group that is all zero."""

TINY, HUGE = np.uint32(0x1F80), np.uint32(0x5F80)
"""BF16 bits of 2**-64 and 2**64, between which a scale has an exact enough inverse."""

UPPER = np.uint32(16)


@njit(nogil=True, cache=True, error_model="numpy")  # division by zero gives Inf and NaN, as the reference's does
def pack_symmetric(x: Any, group: int, bits: int, eager: bool, packed: Any, scale: Any) -> bool:
    """BF16 bits `x` uint16 [R, C] to `packed` uint8 [R, C * bits / 8] and `scale`, BF16 bits uint16 [R, C / group].

    Returns whether every group has a finite scale.
    """
    half = np.uint32(2 ** (bits - 1))
    high = np.float32(2.0 ** (bits - 1) - 1)
    words = np.empty(x.shape[1], np.uint32)
    inverse = np.empty(x.shape[1], np.float32)
    finite = True
    for r in range(x.shape[0]):
        row, tame = x[r], True
        for k in range(x.shape[1] // group):
            here = row[k * group : (k + 1) * group]
            largest = np.uint16(0)
            for j in range(group):
                size = np.uint16(here[j] & np.uint16(0x7FFF))
                largest = size if size > largest else largest
            stored = _bf16(_float(np.uint32(largest) << UPPER) / (high + np.float32(0.5)))
            finite &= stored < INFINITY
            stored = stored if stored else EPS
            tame = bool(tame and TINY <= stored <= HUGE)
            scale[r, k] = np.uint16(stored)
            _fill(inverse, k * group, group, np.float32(1) / _float(stored << UPPER))
        if tame and eager:
            for j in range(row.size):
                y = _float(_bf16(_float(np.uint32(row[j]) << UPPER) * inverse[j]) << UPPER)
                words[j] = _bits(_clamped(y, np.float32(0), high) + ROUND)
        elif tame:
            for j in range(row.size):
                y = _float(np.uint32(row[j]) << UPPER) * inverse[j] + GRID
                words[j] = _bits(_clamped(y, GRID, high) + (ROUND - GRID))
        else:
            for k in range(x.shape[1] // group):
                _divide(row, k * group, group, _float(np.uint32(scale[r, k]) << UPPER), 0, high, eager, words)
        _store(words, bits, half, packed[r])
    return finite


@njit(nogil=True, cache=True, error_model="numpy")
def pack_asymmetric(x: Any, group: int, bits: int, eager: bool, packed: Any, scale: Any, zero_point: Any) -> bool:
    """As `pack_symmetric`; `zero_point` uint8 [R, C / group] takes the zero points, offset binary."""
    half = np.uint32(2 ** (bits - 1))
    high = np.float32(2.0 ** (bits - 1) - 1)
    words = np.empty(x.shape[1], np.uint32)
    inverse, zeros = np.empty(x.shape[1], np.float32), np.empty(x.shape[1], np.float32)
    finite = True
    for r in range(x.shape[0]):
        row, tame = x[r], True
        for k in range(x.shape[1] // group):
            here = row[k * group : (k + 1) * group]
            least, most, largest = np.int16(0), np.int16(0), np.uint16(0)
            for j in range(group):
                size = np.uint16(here[j] & np.uint16(0x7FFF))
                largest = size if size > largest else largest
                order = np.int16(_ordered(np.int16(here[j])))
                least = order if order < least else least
                most = order if order > most else most
            low = _float(np.uint32(np.uint16(_ordered(least))) << UPPER)
            top = _float(np.uint32(np.uint16(_ordered(most))) << UPPER)
            reach = _float(_bf16(top - low) << UPPER)
            stored = _bf16(reach / (np.float32(2) * high + np.float32(1)))
            finite &= (largest < INFINITY) & (stored < INFINITY)
            offset = _float(_bf16(low / _float(stored << UPPER)) << UPPER)
            zero = _float(_bf16(-high - np.float32(1) - offset) << UPPER)
            zero = _clamped(np.float32(0) if np.isnan(zero) else zero, np.float32(0), high) + ROUND
            stored = stored if stored else EPS
            tame = bool(tame and TINY <= stored <= HUGE)
            scale[r, k] = np.uint16(stored)
            zero_point[r, k] = np.uint8(_bits(zero) + half)
            _fill(inverse, k * group, group, np.float32(1) / _float(stored << UPPER))
            _fill(zeros, k * group, group, zero - ROUND)
        if tame and eager:
            for j in range(row.size):
                y = _float(_bf16(_float(np.uint32(row[j]) << UPPER) * inverse[j]) << UPPER)
                y = _float(_bf16(y + zeros[j]) << UPPER)
                words[j] = _bits(_clamped(y, np.float32(0), high) + ROUND)
        elif tame:
            for j in range(row.size):
                y = _float(np.uint32(row[j]) << UPPER) * inverse[j] + (zeros[j] + GRID)
                words[j] = _bits(_clamped(y, GRID, high) + (ROUND - GRID))
        else:
            for k in range(x.shape[1] // group):
                divisor = _float(np.uint32(scale[r, k]) << UPPER)
                _divide(row, k * group, group, divisor, zeros[k * group], high, eager, words)
        _store(words, bits, half, packed[r])
    return finite


def pack_columns(codes: Any, bits: int) -> Any:
    """uint8 [R, G] to int32 [ceil(R * bits / 32), G]: zero points, packed along the rows, filled up with zero bits."""
    per_word = 32 // bits
    rows = np.zeros((-(-len(codes) // per_word) * per_word, codes.shape[1]), np.uint8)
    rows[: len(codes)] = codes
    if bits == 4:
        rows = rows[::2] | rows[1::2] << 4
    return np.ascontiguousarray(rows.reshape(-1, 4, rows.shape[1]).transpose(0, 2, 1)).view("<i4")[:, :, 0]


@njit(inline="always")
def _fill(values: Any, start: int, count: int, value: Any) -> None:
    here = values[start : start + count]  # numba does not vectorise what an index from `start` may wrap
    for j in range(count):
        here[j] = value


@njit
def _divide(row: Any, start: int, count: int, divisor: Any, zero: Any, high: Any, eager: bool, words: Any) -> None:
    """BF16 bits of a group to the nearest integers to x / divisor + zero, in the low bits of `words`."""
    for j in range(start, start + count):
        y = _float(np.uint32(row[j]) << UPPER) / divisor
        if eager:
            y = _float(_bf16(y) << UPPER)
        if zero != 0:
            y = y + np.float32(zero)
            if eager:
                y = _float(_bf16(y) << UPPER)
        words[j] = _bits(_clamped(y, np.float32(0), high) + ROUND)


@njit(inline="always")
def _store(words: Any, bits: int, half: Any, out: Any) -> None:
    """Integers in the low bits of `words` to codes of `bits` bits, offset by `half`, first element lowest."""
    if bits == 4:
        for j in range(out.size):
            low = (words[2 * j] + half) & np.uint32(15)
            high = (words[2 * j + 1] + half) & np.uint32(15)
            out[j] = np.uint8(low | (high << np.uint32(4)))
    else:
        for j in range(out.size):
            out[j] = np.uint8(words[j] + half)


@njit(inline="always")
def _clamped(value: Any, middle: Any, high: Any) -> Any:
    """`value` clamped to [middle - high - 1, middle + high]."""
    value = middle + high if value > middle + high else value
    return middle - high - np.float32(1) if value < middle - high - np.float32(1) else value


@njit(inline="always")
def _rounded(bits: Any) -> Any:
    """BF16 bits nearest to a float given by its 32 bits."""
    return (bits + np.uint32(0x7FFF) + ((bits >> UPPER) & np.uint32(1))) >> UPPER


@njit(inline="always")
def _ordered(bits: Any) -> Any:
    """BF16 bits as an int16 that compares as the values do, and back: negative ones have their magnitude inverted."""
    return bits ^ ((bits >> np.int16(15)) & np.int16(0x7FFF))


def _bitcast(source: Any, target: Any) -> Any:
    """A function that reads the bits of a `source` as a `target`: a register move, where `.view` builds an array."""

    @intrinsic
    def cast(context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return cast


_float = _bitcast(types.uint32, types.float32)
_bits = _bitcast(types.float32, types.uint32)


@njit(inline="always")
def _bf16(value: Any) -> Any:
    return _rounded(_bits(value))
