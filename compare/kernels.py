"""The distance of two runs of values, dense or packed, in one pass over the cache. Importing this needs numba.

`compare.reference` says the same by numpy. A side is given as the bytes of its numbers, and as scale and zero point of
each group of them: (number - zero) * scale is the value. A few numbers at a time are unpacked where a core has them at
hand. Loops have a length that the compiler knows, integers 32 bits wherever they are made, for numba would make them 64
and halve the speed.

Numba looks at the file of a kernel only to see whether what it kept of it is out of date: after a change to what is
imported here, touch this file.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from verify.intrinsics import as_bits, as_float, use_wide_vectors
from verify.kernels import UPPER, kernel, part

summing = njit(nogil=True, error_model="numpy", fastmath={"reassoc"})
"""For sums, whose terms may be added in any order."""

BF16, F32, NIBBLES, BYTES = range(4)
"""What numbers are stored as: the last two are codes of 4 bits, the low half of a byte first, and of 8."""

RUN = 32
"""Numbers that are looked at in one go; groups, and what is given, are multiples of this."""

CHUNK = 2048
"""Numbers that are unpacked in one go, a multiple of `RUN`."""

NIBBLE, FOUR, ALL_BUT_SIGN = np.uint32(0x0F), np.uint32(4), np.uint32(0x7FFFFFFF)


@kernel
def add_up(
    a: Any,
    kind_a: int,
    scale_a: Any,
    zero_a: Any,
    b: Any,
    kind_b: int,
    scale_b: Any,
    zero_b: Any,
    room: Any,
    counts: Any,
) -> Any:
    """(|b - a|², |a|², largest |b - a|, largest |a|) of values; of no use where one of the first two is not finite.

    `a` and `b` are bytes of as many numbers, scales and zeros float32 by group, `room` float32 [2, CHUNK]. Fills
    `counts` int64 [4]: values that differ, groups of b that are all zeros, those of them that are not in a, and codes
    of b that are 0 or the largest.
    """
    many = _count(a, kind_a)
    group_a, group_b = many // len(scale_a), many // len(scale_b)
    error, size, far, largest, left, right = 0.0, 0.0, np.int32(0), np.int32(0), np.int32(0), np.int32(0)
    differing, empty, lost, ends = 0, 0, 0, 0
    g, h, half = 0, 0, np.float32(127.5) if kind_b == BYTES else np.float32(7.5)
    ours, theirs = room[0], room[1]
    for start in range(0, many, CHUNK):
        stop = start + CHUNK if start + CHUNK < many else many
        _unpack(a, kind_a, start, stop, ours)
        _unpack(b, kind_b, start, stop, theirs)
        for at in range(0, stop - start, RUN):
            if start + at == (h + 1) * group_a:
                h += 1
            here, there = ours[at : at + RUN], theirs[at : at + RUN]
            off, norm, x, y, z, other, end = _run(here, scale_a[h], zero_a[h], there, scale_b[g], zero_b[g], half)
            error += off
            size += norm
            far = x if x > far else far
            largest = y if y > largest else largest
            left |= y
            right |= z
            differing += other
            ends += end
            if start + at + RUN == (g + 1) * group_b:
                empty += right == 0
                lost += (right == 0) & (left != 0)
                left, right, g = np.int32(0), np.int32(0), g + 1
    counts[0], counts[1], counts[2], counts[3] = differing, empty, lost, ends
    return error, size, as_float(np.uint32(far)), as_float(np.uint32(largest))


@part
def _count(raw: Any, kind: int) -> int:
    """How many numbers there are."""
    if kind == NIBBLES:
        return len(raw) * 2
    if kind == BYTES:
        return len(raw)
    return len(raw) // 2 if kind == BF16 else len(raw) // 4


@part
def _unpack(raw: Any, kind: int, start: int, end: int, into: Any) -> None:
    """Numbers [start, end) as they are stored."""
    if kind == BF16:
        _widen(raw.view(np.uint16)[start:end], into)
    elif kind == F32:
        _copy(raw.view(np.float32)[start:end], into)
    elif kind == NIBBLES:
        _split(raw[start // 2 : end // 2], into)
    else:
        _convert(raw[start:end], into)


@part
def _widen(bits: Any, into: Any) -> None:
    use_wide_vectors()
    for i in range(len(bits)):
        into[i] = as_float(np.uint32(np.uint32(bits[i]) << UPPER))


@part
def _copy(values: Any, into: Any) -> None:
    use_wide_vectors()
    for i in range(len(values)):
        into[i] = values[i]


@part
def _split(packed: Any, into: Any) -> None:
    use_wide_vectors()
    for i in range(len(packed)):
        both = np.uint32(packed[i])
        into[2 * i] = np.float32(np.int32(both & NIBBLE))
        into[2 * i + 1] = np.float32(np.int32(both >> FOUR))


@part
def _convert(packed: Any, into: Any) -> None:
    use_wide_vectors()
    for i in range(len(packed)):
        into[i] = np.float32(np.int32(np.uint32(packed[i])))


@summing
def _run(a: Any, scale_a: Any, zero_a: Any, b: Any, scale_b: Any, zero_b: Any, half: Any) -> Any:
    """Squared norms in 64 bits; maxima of |b - a|, |a| and |b| by their bits, which compare as integers; values that
    differ; numbers of b that are 0 or twice `half`."""
    use_wide_vectors()
    error, size = 0.0, 0.0
    far, left, right = np.int32(0), np.int32(0), np.int32(0)
    differing, ends = np.int32(0), np.int32(0)
    for i in range(RUN):
        ours, theirs = (a[i] - zero_a) * scale_a, (b[i] - zero_b) * scale_b
        off = theirs - ours
        wide, one = np.float64(off), np.float64(ours)
        error += wide * wide
        size += one * one
        x, y, z = _magnitude(off), _magnitude(ours), _magnitude(theirs)
        far = x if x > far else far
        left = y if y > left else left
        right = z if z > right else right
        differing += np.int32(ours != theirs)
        ends += np.int32(abs(b[i] - half) == half)
    return error, size, far, left, right, differing, ends


@part
def _magnitude(value: Any) -> Any:
    return np.int32(as_bits(value) & ALL_BUT_SIGN)
