"""RTN and packing on a GPU in one pass over its memory. Importing this needs triton.

The same bits as `quantize_rows` and `pack_rows`, which are the reference, of rows whose groups fill whole words: then
a matrix is a run of groups, whatever its rows. BF16 comes and goes as int16, since it is handled by its bits here.

A quotient of BF16 values is taken as x times 1 / scale, which is exact enough. With 8-bit significands a quotient that
is not halfway between two integers is at least 2**-10 away from there, one that is not halfway between two BF16 values
at least 2**-17 of itself; and one of two BF16 values is never halfway between two others.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROUND = tl.constexpr(12582912.0)
"""1.5 * 2**23: added to |y| < 2**22 it leaves y, rounded half to even, in the low bits of the sum."""

SURPLUS_4 = tl.constexpr(-0x3F400000)
SURPLUS_8 = tl.constexpr(0x74C00000)
"""What takes the bits of ROUND, shifted by 0, b, 2b, ... and added up, out of a 32-bit word of b-bit codes."""

GRID = tl.constexpr(3072.0)
"""1.5 * 2**11: added to |y| < 2**10 it rounds y to a multiple of 2**-12, which makes what is nearly halfway halfway."""

FAR = tl.constexpr(2.0**64)
INF = tl.constexpr(float("inf"))
MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit(do_not_specialize=["count"])
def pack_groups(
    source: tl.tensor,
    packed: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    refused: tl.tensor,
    count: tl.tensor,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    BITS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    EAGER: tl.constexpr,
    DTYPE: tl.constexpr,
    EPS: tl.constexpr,
) -> None:
    """`count` groups of SIZE elements at `source`: words to `packed`, a scale each to `scales`, to `zeros` the zero
    point as uint8, offset binary. `refused` becomes 1 where a group has no finite scale.

    A program takes GROUPS groups, WIDTH elements of each at a time, both powers of two.
    """
    first = tl.program_id(0).to(tl.int64) * GROUPS
    row = tl.arange(0, GROUPS)
    inside = row < tl.minimum(count - first, GROUPS).to(tl.int32)
    source += first * SIZE
    low = tl.zeros([GROUPS, WIDTH], tl.int32)
    high = tl.zeros([GROUPS, WIDTH], tl.int32)
    if SIZE <= WIDTH:
        x = _load(source, row, inside, 0, SIZE, WIDTH, DTYPE)
        low, high = _extremes(x, low, high, SYMMETRIC)
    else:
        for start in range(0, SIZE, WIDTH):
            x = _load(source, row, inside, start, SIZE, WIDTH, DTYPE)
            low, high = _extremes(x, low, high, SYMMETRIC)
    least = _ordered(tl.min(low, 1)).to(tl.float32, bitcast=True)
    most = tl.max(high, 1).to(tl.float32, bitcast=True)
    if SYMMETRIC:
        scale, zero, finite = _symmetric(most, BITS, DTYPE)
    else:
        scale, zero, finite = _asymmetric(least, most, BITS, DTYPE)
        tl.store(zeros + first + row, (zero + 2 ** (BITS - 1)).to(tl.uint8), mask=inside)
    scale = tl.where(scale == 0, EPS, scale)
    tl.store(scales + first + row, _stored(scale, DTYPE), mask=inside)
    tl.store(refused + row * 0, 1, mask=inside & (finite == 0))
    packed += first * (SIZE * BITS // 32)
    if SIZE <= WIDTH:
        words = _words(_codes(x, scale, zero, BITS, SYMMETRIC, EAGER, DTYPE), BITS)
        _store(packed, words, row, inside, 0, SIZE * BITS // 32, WIDTH * BITS // 32)
    else:
        for start in range(0, SIZE, WIDTH):
            x = _load(source, row, inside, start, SIZE, WIDTH, DTYPE)
            words = _words(_codes(x, scale, zero, BITS, SYMMETRIC, EAGER, DTYPE), BITS)
            _store(packed, words, row, inside, start * BITS // 32, SIZE * BITS // 32, WIDTH * BITS // 32)


@triton.jit
def _load(
    source: tl.tensor,
    row: tl.tensor,
    inside: tl.tensor,
    start: tl.tensor,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    DTYPE: tl.constexpr,
) -> tl.tensor:
    """Elements [start, start + WIDTH) of the groups `row` as float32, 0 behind their end."""
    column = start + tl.arange(0, WIDTH)
    mask = inside[:, None]
    if SIZE % WIDTH:
        mask = mask & (column < SIZE)[None, :]
    raw = tl.load(source + (row[:, None] * SIZE + column[None, :]), mask=mask, other=0)
    if DTYPE == "BF16":
        return (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return raw.to(tl.float32)


@triton.jit
def _extremes(x: tl.tensor, low: tl.tensor, high: tl.tensor, SYMMETRIC: tl.constexpr) -> tl.tensor:
    """The bits of `x` taken into those seen so far: magnitudes into `high`, or what orders as values do into both.

    On bits, not on floats, whose minimum and maximum pass over NaN.
    """
    bits = x.to(tl.int32, bitcast=True)
    if SYMMETRIC:
        return low, tl.maximum(high, bits & MAGNITUDE)
    else:
        return tl.minimum(low, _ordered(bits)), tl.maximum(high, _ordered(bits))


@triton.jit
def _ordered(bits: tl.tensor) -> tl.tensor:
    """The bits of a float as an integer that orders as the floats do, and back: negative ones have theirs inverted."""
    return bits ^ ((bits >> 31) & MAGNITUDE)


@triton.jit
def _symmetric(largest: tl.tensor, BITS: tl.constexpr, DTYPE: tl.constexpr) -> tl.tensor:
    """Scale, zero point and whether the group is finite; a scale may be 0 yet."""
    scale = _rounded(tl.div_rn(largest, 2.0 ** (BITS - 1) - 0.5), DTYPE)
    return scale, tl.zeros_like(scale), largest < INF


@triton.jit
def _asymmetric(low: tl.tensor, high: tl.tensor, BITS: tl.constexpr, DTYPE: tl.constexpr) -> tl.tensor:
    """As `_symmetric`."""
    half: tl.constexpr = 2.0 ** (BITS - 1)
    reach = high - low
    held = _rounded(reach, DTYPE)
    scale = _rounded(tl.div_rn(held, 2 * half - 1), DTYPE)
    offset = _rounded(tl.div_rn(low, scale), DTYPE)
    zero = tl.minimum(tl.maximum(_rounded(-half - offset, DTYPE), -half), half - 1)
    # an all-zero group divides 0 by 0; its zero point is 0
    zero = tl.where((low == 0) & (scale == 0), 0.0, (zero + ROUND) - ROUND)
    return scale, zero, (reach < INF) & (held < INF)


@triton.jit
def _codes(
    x: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    BITS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    EAGER: tl.constexpr,
    DTYPE: tl.constexpr,
) -> tl.tensor:
    """Integers nearest to x / scale + zero, offset binary, in the low bits under those of ROUND."""
    half: tl.constexpr = 2.0 ** (BITS - 1)
    base: tl.constexpr = GRID if DTYPE == "BF16" and not EAGER else 0.0
    if DTYPE == "BF16":
        # 1 / scale of a subnormal scale may be no float; a power of two changes no quotient that does not vanish
        factor = tl.where(scale < 1 / FAR, FAR, tl.where(scale > FAR, 1 / FAR, 1.0))
        y = x * factor[:, None] * tl.div_rn(1.0, scale * factor)[:, None]
    else:
        y = tl.div_rn(x, scale[:, None])
    if EAGER:
        y = _rounded(y, DTYPE)
        if not SYMMETRIC:
            y = _rounded(y + zero[:, None], DTYPE)
    else:
        y += zero[:, None] + base
    y = tl.minimum(tl.maximum(y, base - half), base + half - 1)
    return (y + (ROUND + half - base)).to(tl.int32, bitcast=True)


@triton.jit
def _rounded(value: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """`value` rounded to DTYPE, half to even. NaN stays no number with F16 and F32 only."""
    if DTYPE == "BF16":
        bits = value.to(tl.int32, bitcast=True)
        bits = (bits + (0x7FFF + ((bits >> 16) & 1))) & -0x10000
        return bits.to(tl.float32, bitcast=True)
    elif DTYPE == "F16":
        return value.to(tl.float16).to(tl.float32)
    else:
        return value


@triton.jit
def _stored(value: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """A value that DTYPE holds as what `scales` points to."""
    if DTYPE == "BF16":
        return (value.to(tl.int32, bitcast=True) >> 16).to(tl.int16)
    elif DTYPE == "F16":
        return value.to(tl.float16)
    else:
        return value


@triton.jit
def _words(codes: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Codes [G, W] under the bits of ROUND to words [G, W * BITS / 32], the first element lowest."""
    per_word: tl.constexpr = 32 // BITS
    shift = tl.arange(0, per_word) * BITS
    parts = tl.reshape(codes, [codes.shape[0], codes.shape[1] // per_word, per_word]) << shift[None, None, :]
    # the upper bits of all parts add up to a constant
    return tl.add(tl.sum(parts, 2), SURPLUS_4 if BITS == 4 else SURPLUS_8, sanitize_overflow=False)


@triton.jit
def _store(
    packed: tl.tensor,
    words: tl.tensor,
    row: tl.tensor,
    inside: tl.tensor,
    start: tl.tensor,
    ROW: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """`words` [G, W] to words [start, start + WIDTH) of the groups `row`, which have ROW each."""
    column = start + tl.arange(0, WIDTH)
    mask = inside[:, None]
    if ROW % WIDTH:
        mask = mask & (column < ROW)[None, :]
    tl.store(packed + (row[:, None] * ROW + column[None, :]), words, mask=mask)


@triton.jit(do_not_specialize=["rows", "groups"])
def pack_zeros(
    zeros: tl.tensor,
    words: tl.tensor,
    rows: tl.tensor,
    groups: tl.tensor,
    BITS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Zero points uint8 [rows, groups] to int32 [ceil(rows * BITS / 32), groups]: as rows, but along the columns.

    A program makes WIDTH words of one row.
    """
    word = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, 32 // BITS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    row = word * (32 // BITS) + part
    mask = (row < rows)[:, None] & (column < groups)[None, :]
    codes = tl.load(zeros + row[:, None] * groups + column[None, :], mask=mask, other=0).to(tl.int32)
    tl.store(words + word * groups + column, tl.sum(codes << (part * BITS)[:, None], 0), mask=column < groups)
