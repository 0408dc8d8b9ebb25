"""Packed BF16 rows beside the weight that they were made of, in one pass over the cache. Importing this needs numba.

Nothing is quantized again here. Round-to-nearest sends to a code the weights of an interval around what the code
stands for, so a stored code is right if the distance it leaves is within half a step,

    |weight - (code - zero) * scale| <= (1/2 +- margin) * scale        + for even codes, - for odd ones

with the weight clamped to the ends of the grid. In `fp32` maths a tie is one point, and belongs to the even code: the
margin need only be less than any other weight's distance from the midpoint, and more than F32 loses. In `eager` maths
the quotient is rounded to 8 significant bits first, and what is within half a unit in the last place of the midpoint
becomes it: the margin is 2^-8 of the midpoint's binade.

`verify.arithmetic` is the reference, with the same verdicts. Integers are given 32 bits wherever they are made, for
numba would make them 64 and halve the speed; arrays are flat, and scratch is the caller's, since to compile their
shaping takes longer than all else. BF16 is the upper half of F32, so one word holds a pair of weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from verify.intrinsics import as_bits, as_float, use_wide_vectors, width_of

PAIRS = 16
"""Pairs of weights looked at in one go, a number that the compiler knows: groups are multiples of 32 weights."""

BATCH = 8192
"""Pairs, or one row if it is longer, whose extremes are looked for together; scratch has room for as many."""

POINT = np.float32(2.0**-14)
"""Margin of a tie in `fp32` maths, in steps. A BF16 weight that is no tie is 2^-11 of a BF16 step or more from it."""

ROUNDED = np.float32(2.0**-8)
"""Margin of a tie in `eager` maths, of its binade. No quotient of BF16 numbers ends there, on 9 significant bits."""

LEAST, MOST = np.uint16(0x2180), np.uint16(0x7180)
"""Bits of 2^-60 and 2^100, between which a scale keeps distances and their bounds clear of the ends of F32."""

FP32, EAGER, PARTLY, FILLED = range(4)
"""The columns of `found`: are all codes right, by maths; if in none, are those of most rows that hold more than
zeros; is there such a row."""

UPPER, TOP, ONE = np.uint32(16), np.uint32(31), np.uint32(1)
UPPER_HALF = np.uint32(0xFFFF0000)
SIGN, EXPONENT, HALF = np.uint32(0x80000000), np.uint32(0x7F800000), np.uint32(0x3F000000)
NONE, ALL, SIZES, SIGNS = np.uint32(0), np.uint32(0xFFFFFFFF), np.uint32(0x7FFF7FFF), np.uint32(0x80008000)
INFINITY, EPS = np.uint16(0x7F80), np.uint16(0x3C00)
HALF_UNIT = np.uint32(0x8000)
"""Half a unit in the last place of a BF16 number, in the bits of an F32 one."""

WHOLE, WHOLE_BITS = np.float32(2.0**23), np.uint32(0x4B000000)
"""A number n below 2^23 put in the low bits of the float 2^23 makes it 2^23 + n."""

part = njit(nogil=True, error_model="numpy")
kernel = njit(nogil=True, error_model="numpy", cache=True)


@kernel
def judge(
    pairs: Any,
    codes: Any,
    scale: Any,
    zeros: Any,
    groups: int,
    height: int,
    modes: Any,
    spare: Any,
    words: Any,
    found: Any,
) -> int:
    """Fill `found` int64 [blocks, 4], a line for each `height` rows. Returns 0, or 1 if a scale is out of range.

    `pairs` uint32 [R * C / 2] of weights; `codes` as many pairs of them, uint8 if of 4 bits, uint16 if of 8; `scale`
    BF16 bits uint16 [R * groups]; `zeros` int8 [R * groups], None where symmetric; `modes` int64 [2]: is fp32, is eager
    to be tried, narrowed to those that a block is exact in. `spare` uint16 [3, 2 * BATCH] or wider is scratch, `words`
    the same memory as uint32.
    """
    use_wide_vectors()
    if _out_of_range(scale):
        return 1
    rows = len(scale) // groups
    row = len(pairs) // rows
    for block in range(len(found)):
        first = block * height
        end = first + height if first + height < rows else rows
        right = _is_grid(pairs, scale, zeros, groups, row, first, end, width_of(codes), spare, words)
        _judge_rows(pairs, codes, scale, zeros, groups, row, first, end, right, modes, found[block])
    return 0


@part
def _out_of_range(scale: Any) -> Any:
    bad: Any = 0
    for g in range(len(scale)):
        bad |= np.uint16(scale[g] - LEAST) > np.uint16(MOST - LEAST)
    return bad


@part
def _is_grid(
    pairs: Any, scale: Any, zeros: Any, groups: int, row: int, first: int, end: int, bits: int, spare: Any, words: Any
) -> int:
    """Are scales and zero points of rows [first, end) those of the extremes of their groups?"""
    batch = 1 + (BATCH - 1) // row
    wrong = 0
    for start in range(first, end, batch):
        stop = start + batch if start + batch < end else end
        many, at = (stop - start) * groups, start * groups
        here, scales = pairs[start * row : stop * row], scale[at : stop * groups]
        if zeros is None:
            turn = _extremes(here, SIZES, NONE, many, spare, words)
            wrong |= _wrong_scales(spare[turn], scales, bits)
        else:
            turn = _extremes(here, ALL, NONE, many, spare, words)
            for g in range(many):
                spare[2, g] = spare[turn, g]
            turn = _extremes(here, ALL, SIGNS, many, spare, words)
            wrong |= _wrong_zeros(spare[2], spare[turn], scales, zeros[at : stop * groups], bits)
    return not wrong


@part
def _extremes(pairs: Any, keep: Any, flip: Any, many: int, spare: Any, words: Any) -> int:
    """The row of `spare` that takes the largest of each of `many` runs of weights of bits `(bits & keep) ^ flip`.

    Positive BF16 numbers compare as integers; negative ones count as 0.
    """
    count, turn = len(pairs), 0
    _larger(pairs, keep, flip, spare[0, :count])
    while count // many % 2 == 0:
        count //= 2
        _larger(words[turn, :count], ALL, NONE, spare[1 - turn, :count])
        turn = 1 - turn
    rest = count // many
    for run in range(many if rest > 1 else 0):
        largest = spare[turn, run * rest]
        for i in range(run * rest, (run + 1) * rest):
            largest = spare[turn, i] if spare[turn, i] > largest else largest
        spare[turn, run] = largest
    return turn


@part
def _larger(pairs: Any, keep: Any, flip: Any, into: Any) -> None:
    use_wide_vectors()
    for i in range(len(into)):
        pair = np.uint32(np.uint32(pairs[i] & keep) ^ flip)
        left, right = np.int16(pair), np.int16(np.uint32(pair >> UPPER))
        larger = left if left > right else right
        into[i] = np.uint16(larger if larger > 0 else np.int16(0))


@part
def _wrong_scales(largest: Any, scale: Any, bits: int) -> Any:
    steps = np.float32((1 << bits) - 1) / np.float32(2)
    wrong = False
    for g in range(len(scale)):
        wrong |= not _is_rounded(scale[g], widened(largest[g]), steps)
    return wrong


@part
def _is_rounded(scale: Any, size: Any, steps: Any) -> Any:
    """Is the BF16 number of bits `scale` what size / steps rounds to, or eps where that is 0?

    It is if the midpoints to its neighbours are on either side; no BF16 number is 7.5, 15, 127.5 or 255 midpoints.
    """
    bits = np.uint32(np.uint32(scale) << UPPER)
    below, above = as_float(np.uint32(bits - HALF_UNIT)) * steps, as_float(np.uint32(bits + HALF_UNIT)) * steps
    return ((below < size) & (size < above)) | ((scale == EPS) & (size < as_float(HALF_UNIT) * steps))


@part
def _wrong_zeros(largest: Any, lowest: Any, scale: Any, zeros: Any, bits: int) -> Any:
    """Are scales and zero points those of groups that reach from -lowest to largest?"""
    steps, bottom = np.float32((1 << bits) - 1), np.float32(-(1 << (bits - 1)))
    wrong = False
    for g in range(len(scale)):
        low, high = -widened(lowest[g]), widened(largest[g])
        spread = _rounded(high - low)
        step = widened(scale[g]) if spread >= as_float(HALF_UNIT) * steps else np.float32(0)
        place = _rounded(bottom - _rounded(low / step))
        zero = np.rint(min(max(place, bottom), bottom + steps)) if place == place else np.float32(0)
        wrong |= not (_is_rounded(scale[g], spread, steps) & (zero == np.float32(zeros[g])))
        wrong |= max(largest[g], lowest[g]) >= INFINITY
    return wrong


@part
def widened(bits: Any) -> Any:
    """BF16 bits as a float."""
    return as_float(np.uint32(np.uint32(bits) << UPPER))


@part
def _rounded(value: Any) -> Any:
    """A float rounded to BF16, ties to even; NaN stays one."""
    bits = as_bits(value)
    odd = np.uint32(np.uint32(bits >> UPPER) & ONE)
    return as_float(np.uint32(np.uint32(np.uint32(bits + odd) + np.uint32(HALF_UNIT - ONE)) & UPPER_HALF))


@part
def _judge_rows(
    pairs: Any,
    codes: Any,
    scale: Any,
    zeros: Any,
    groups: int,
    row: int,
    first: int,
    end: int,
    right: int,
    modes: Any,
    line: Any,
) -> None:
    """Judge the codes of rows whose scales are `right` or not; narrow `modes` to those that the rows are exact in."""
    filled = 0
    for r in range(first, end):
        filled += _any(pairs[r * row : (r + 1) * row])
    line[FP32], line[EAGER], line[PARTLY], line[FILLED] = 0, 0, 0, filled > 0
    for turn in range(4 if right else 0):
        mode, empty = turn % 2, turn < 2
        if modes[mode]:
            exact = _exact_rows(pairs, codes, scale, zeros, groups, row, first, end, mode, empty)
            if empty:
                line[mode] = exact == end - first
            else:
                line[PARTLY] |= 2 * exact > filled
        if turn == 1 and line[FP32] + line[EAGER]:
            modes[FP32], modes[EAGER] = line[FP32], line[EAGER]
            return


@part
def _exact_rows(
    pairs: Any, codes: Any, scale: Any, zeros: Any, groups: int, row: int, first: int, end: int, mode: int, empty: int
) -> Any:
    """How many rows have the right codes, counting those of zeros if `empty`."""
    exact = 0
    for r in range(first, end):
        here, stored = pairs[r * row : (r + 1) * row], codes[r * row : (r + 1) * row]
        if _is_exact(here, stored, scale[r * groups : (r + 1) * groups], zeros, r * groups, mode):
            exact += empty or _any(here)
    return exact


@part
def _any(pairs: Any) -> Any:
    """Is there anything but zeros?"""
    for i in range(len(pairs)):
        if pairs[i] & SIZES:
            return 1
    return 0


@part
def _is_exact(pairs: Any, codes: Any, scale: Any, zeros: Any, at: int, eager: int) -> Any:
    """Are all codes of a row what rounding gives? Its zero points begin `at`."""
    size = len(pairs) // len(scale)
    for g in range(len(scale)):
        step = widened(scale[g])
        zero = np.float32(0) if zeros is None else np.float32(zeros[at + g])
        for start in range(g * size, (g + 1) * size, PAIRS):
            here, stored = pairs[start : start + PAIRS], codes[start : start + PAIRS]
            if not eager:
                stray = _strays(here, stored, step, zero)
            elif zeros is None:
                stray = _strays_rounded(here, stored, step)
            else:
                stray = _strays_twice(here, stored, step, zero)
            if stray:
                return 0
    return 1


@part
def _strays(pairs: Any, codes: Any, scale: Any, zero: Any) -> Any:
    """Is any of the weights outside the interval of its code in fp32 maths?"""
    use_wide_vectors()
    bits = width_of(codes)
    mask, middle = np.uint32((1 << bits) - 1), np.float32(1 << (bits - ONE)) + zero
    low, high = -middle * scale, (np.float32(mask) - middle) * scale
    even, odd = (np.float32(0.5) + POINT) * scale, (np.float32(0.5) - POINT) * scale
    bad = np.uint32(0)
    for i in range(PAIRS):
        pair, both = pairs[i], np.uint32(codes[i])
        left, right = as_float(np.uint32(pair << UPPER)), as_float(np.uint32(pair & UPPER_HALF))
        bad = np.uint32(bad | _stray(left, np.uint32(both & mask), middle, low, high, scale, even, odd))
        bad = np.uint32(bad | _stray(right, np.uint32(both >> bits), middle, low, high, scale, even, odd))
    return bad


@part
def _stray(weight: Any, stored: Any, middle: Any, low: Any, high: Any, scale: Any, even: Any, odd: Any) -> Any:
    kept = weight if weight > low else low
    kept = kept if kept < high else high
    place = as_float(np.uint32(stored | WHOLE_BITS)) - (WHOLE + middle)
    return np.uint32(abs(kept - place * scale) > (odd if stored & ONE else even))


@part
def _strays_rounded(pairs: Any, codes: Any, scale: Any) -> Any:
    """As `_strays` in eager maths, without zero points."""
    use_wide_vectors()
    bits = width_of(codes)
    mask, middle = np.uint32((1 << bits) - 1), np.float32(1 << (bits - ONE))
    low, high = -middle * scale, (np.float32(mask) - middle) * scale
    half, margin = np.float32(0.5) * scale, ROUNDED * scale
    bad = np.uint32(0)
    for i in range(PAIRS):
        pair, both = pairs[i], np.uint32(codes[i])
        left, right = as_float(np.uint32(pair << UPPER)), as_float(np.uint32(pair & UPPER_HALF))
        bad = np.uint32(bad | _stray_rounded(left, np.uint32(both & mask), middle, low, high, scale, half, margin))
        bad = np.uint32(bad | _stray_rounded(right, np.uint32(both >> bits), middle, low, high, scale, half, margin))
    return bad


@part
def _stray_rounded(
    weight: Any, stored: Any, middle: Any, low: Any, high: Any, scale: Any, half: Any, margin: Any
) -> Any:
    kept = weight if weight > low else low
    kept = kept if kept < high else high
    place = as_float(np.uint32(stored | WHOLE_BITS)) - (WHOLE + middle)
    off = kept - place * scale
    midpoint = place + as_float(np.uint32(np.uint32(as_bits(off) & SIGN) | HALF))
    binade = as_float(np.uint32(np.uint32(as_bits(midpoint) & EXPONENT) ^ np.uint32(stored << TOP)))
    return np.uint32(abs(off) > half + binade * margin)


@part
def _strays_twice(pairs: Any, codes: Any, scale: Any, zero: Any) -> Any:
    """As `_strays` in eager maths, where the zero point is added to a rounded quotient and the sum rounded again."""
    use_wide_vectors()
    bits = width_of(codes)
    mask, middle = np.uint32((1 << bits) - 1), np.float32(1 << (bits - ONE))
    bad = np.uint32(0)
    for i in range(PAIRS):
        pair, both = pairs[i], np.uint32(codes[i])
        left, right = as_float(np.uint32(pair << UPPER)), as_float(np.uint32(pair & UPPER_HALF))
        bad = np.uint32(bad | _stray_twice(left, np.uint32(both & mask), middle, scale, zero))
        bad = np.uint32(bad | _stray_twice(right, np.uint32(both >> bits), middle, scale, zero))
    return bad


@part
def _stray_twice(weight: Any, stored: Any, middle: Any, scale: Any, zero: Any) -> Any:
    """A tie, half away from the code, belongs to it if it is even."""
    place = _rounded(_rounded(weight / scale) + zero)
    place = min(max(place, -middle), middle - np.float32(1))
    off = place - (as_float(np.uint32(stored | WHOLE_BITS)) - (WHOLE + middle))
    return np.uint32(as_bits(abs(off)) > np.uint32(HALF - np.uint32(stored & ONE)))
