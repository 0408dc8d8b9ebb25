"""The distance of two runs of values by numpy, for all dtypes and groups: what the compiled kernels must agree with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import inf, isfinite
from typing import TYPE_CHECKING

from compare.measures import Sums
from compare.spans import height
from compare.weights import DENSE, Weight
from verify.arithmetic import Grid, to_float32, unpack_columns, unpack_rows, values_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from verify.arithmetic import Bytes, Floats

    Raw = Mapping[str, Bytes]
    """Bytes of some rows, by the suffix of their tensor."""


BLOCK = 1 << 16
"""Weights that are looked at in one go: what is made of them stays in a core's cache."""


def measure(a: Weight, raw_a: Raw, b: Weight, raw_b: Raw, rows: int, columns: int) -> Sums:
    """The sums of `rows` rows, whose first divides by 8."""
    total, step = Sums(), height(columns, BLOCK)
    for first in range(0, rows, step):
        end = min(first + step, rows)
        left, right = (_cut(one, raw, rows, first, end) for one, raw in ((a, raw_a), (b, raw_b)))
        total += _block(a, left, b, right, end - first, columns)
    return total


def _cut(weight: Weight, raw: Raw, rows: int, first: int, end: int) -> Raw:
    """Rows [first, end) of `rows` rows."""
    found = {part: data[first * len(data) // rows : end * len(data) // rows] for part, data in raw.items()}
    if "weight_zero_point" in raw and weight.grid is not None:
        width, bits = weight.parts["weight_zero_point"].shape[1] * 4, weight.grid.bits
        words = slice(first * bits // 32 * width, -(-end * bits // 32) * width)
        found["weight_zero_point"] = raw["weight_zero_point"][words]
    return found


def _block(a: Weight, raw_a: Raw, b: Weight, raw_b: Raw, rows: int, columns: int) -> Sums:
    left, right = values(a, raw_a, rows, columns), values(b, raw_b, rows, columns)
    found = _norms(left, right)
    if b.grid is None:
        return found
    saturated = _ends(raw_b["weight_packed"].reshape(rows, -1), b.grid.bits, columns)
    return found + _groups(left, right, b.grid) + Sums(codes=rows * columns, saturated=saturated)


def values(weight: Weight, raw: Raw, rows: int, columns: int) -> Floats:
    """What the rows stand for, flat."""
    if weight.grid is None:
        return to_float32(raw[DENSE], weight.parts[DENSE].dtype)
    codes = unpack_rows(raw["weight_packed"].reshape(rows, -1), weight.grid.bits, columns)
    return values_of(codes, *grid_of(weight, raw, rows), weight.grid.group).reshape(-1)


def grid_of(weight: Weight, raw: Raw, rows: int) -> tuple[Floats, Floats | None]:
    """Scales and zero points [rows, groups] of a packed weight; no zero points where it is symmetric."""
    import numpy as np

    scale = to_float32(raw["weight_scale"], weight.parts["weight_scale"].dtype).reshape(rows, -1)
    zeros = raw.get("weight_zero_point")
    if zeros is None or weight.grid is None:
        return scale, None
    return scale, unpack_columns(zeros.reshape(-1, scale.shape[1], 4), weight.grid.bits, rows).astype(np.float32)


def _norms(a: Floats, b: Floats) -> Sums:
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        off = b - a
        error, norm = _squared(off), _squared(a)
    if isfinite(error) and isfinite(norm):
        return Sums(len(a), int(np.count_nonzero(off)), error, norm, _largest(off), _largest(a))
    differing = np.count_nonzero((a != b) & ~(np.isnan(a) & np.isnan(b)))
    return Sums(len(a), int(differing), error, norm, inf, inf)


def _squared(values: Floats) -> float:
    """The squared norm in 64 bits. Not by BLAS, whose own threads would wait for each other more than they add."""
    import numpy as np

    wide = values.astype(np.float64)
    return float(np.einsum("i,i->", wide, wide))


def _largest(values: Floats) -> float:
    """The largest of the magnitudes."""
    return float(max(values.max(initial=0.0), -values.min(initial=0.0)))


def _groups(a: Floats, b: Floats, grid: Grid) -> Sums:
    """Of packed values `b`, the groups that stand for zeros alone."""
    empty = ~b.reshape(-1, grid.group).any(axis=1)
    lost = a.reshape(-1, grid.group)[empty].any(axis=1)
    return Sums(groups=empty.size, zero=int(empty.sum()), lost=int(lost.sum()))


def _ends(packed: Bytes, bits: int, columns: int) -> int:
    """How many codes of packed rows are at either end of their range."""
    import numpy as np

    used = columns * bits // 8
    counts = np.bincount(packed[:, :used].reshape(-1), minlength=256)
    found = int(np.dot(counts, _ends_by_byte(bits)))
    if columns * bits % 8:
        last = packed[:, used] & np.uint8(0x0F)
        found += int(np.count_nonzero((last == 0) | (last == 0x0F)))
    return found


@lru_cache(maxsize=2)
def _ends_by_byte(bits: int) -> NDArray[np.int64]:
    """How many of the codes in a byte are at either end, for each byte."""
    import numpy as np

    byte = np.arange(256)
    codes = (byte,) if bits == 8 else (byte & 0x0F, byte >> 4)
    ends = np.array([(code == 0) | (code == (1 << bits) - 1) for code in codes])
    counts: NDArray[np.int64] = ends.sum(axis=0, dtype=np.int64)
    return counts
