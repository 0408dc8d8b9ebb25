"""What packed weights stand for, and how far that is from others, on a GPU. Importing this needs triton.

Written apart from the kernels that pack, as all that judges is. Rows must fill whole words, and groups, too. BF16 comes
and goes as int16, since it is handled by its bits here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch

TILE, WARPS = 1024, 1
"""Elements of a program, and its warps of 32 threads."""


def dequantize(
    packed: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, bits: int, dtype: torch.dtype
) -> torch.Tensor:
    """(code - zero point) * scale as `dtype` (BF16, F16, F32) [R, C], of the tensors of a module as they are stored."""
    import torch

    rows, columns = len(packed), packed.shape[1] * 32 // bits
    values = torch.empty((rows, columns), dtype=dtype, device=packed.device)
    grid, shape = _shape(columns, scale, zero_point, bits)
    write_values[grid](
        *_inputs(packed, scale, zero_point), _bits(values), scale.numel(), **shape, OUT=_name(dtype), num_warps=WARPS
    )
    return values


def squared_error(
    weight: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, bits: int
) -> tuple[float, float]:
    """|values - weight|² and |weight|², Frobenius norms, with 32-bit sums of at most TILE elements in 64-bit ones."""
    import torch

    grid, shape = _shape(weight.shape[1], scale, zero_point, bits)
    sums = torch.empty((2, grid[0] * grid[1]), dtype=torch.float32, device=weight.device)
    sum_squares[grid](
        *_inputs(packed, scale, zero_point),
        _bits(weight),
        sums,
        scale.numel(),
        **shape,
        WEIGHT=_name(weight.dtype),
        num_warps=WARPS,
        enable_fp_fusion=False,  # a value is rounded to 32 bits before it is compared, as on a CPU
    )
    error, size = sums.sum(1, dtype=torch.float64).tolist()
    return error, size


@triton.jit(do_not_specialize=["count"])
def write_values(
    packed: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    values: tl.tensor,
    count: tl.tensor,
    PER_ROW: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    BITS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    SCALE: tl.constexpr,
    OUT: tl.constexpr,
) -> None:
    """`count` groups of SIZE elements, PER_ROW of them in a row; a program takes WIDTH elements of GROUPS groups."""
    first, row, inside = _rows(count, GROUPS)
    value = _values(packed, scales, zeros, first, row, inside, PER_ROW, SIZE, WIDTH, BITS, SYMMETRIC, SCALE)
    column, mask = _columns(inside, SIZE, WIDTH)
    tl.store(values + first * SIZE + (row[:, None] * SIZE + column[None, :]), _stored(value, OUT), mask=mask)


@triton.jit(do_not_specialize=["count"])
def sum_squares(
    packed: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    weight: tl.tensor,
    sums: tl.tensor,
    count: tl.tensor,
    PER_ROW: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    BITS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    SCALE: tl.constexpr,
    WEIGHT: tl.constexpr,
) -> None:
    """As `write_values`, but the sums of (value - weight)² and weight² of each program to both rows of `sums`."""
    first, row, inside = _rows(count, GROUPS)
    value = _values(packed, scales, zeros, first, row, inside, PER_ROW, SIZE, WIDTH, BITS, SYMMETRIC, SCALE)
    column, mask = _columns(inside, SIZE, WIDTH)
    raw = tl.load(weight + first * SIZE + (row[:, None] * SIZE + column[None, :]), mask=mask, other=0)
    expected = _float(raw, WEIGHT)
    difference = tl.where(mask, value - expected, 0.0)
    programs = tl.num_programs(0) * tl.num_programs(1)
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(sums + program, tl.sum(tl.sum(difference * difference, 1), 0))
    tl.store(sums + programs + program, tl.sum(tl.sum(expected * expected, 1), 0))


@triton.jit
def _rows(count: tl.tensor, GROUPS: tl.constexpr) -> tl.tensor:
    """The first group of this program, all of them counted from there, and which of them there are."""
    first = tl.program_id(0).to(tl.int64) * GROUPS
    row = tl.arange(0, GROUPS)
    return first, row, row < tl.minimum(count - first, GROUPS).to(tl.int32)


@triton.jit
def _columns(inside: tl.tensor, SIZE: tl.constexpr, WIDTH: tl.constexpr) -> tl.tensor:
    """The elements of this program within their groups, and which of them there are."""
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mask = inside[:, None] & (column < SIZE)[None, :]
    return column, mask


@triton.jit
def _values(
    packed: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    first: tl.tensor,
    row: tl.tensor,
    inside: tl.tensor,
    PER_ROW: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    SCALE: tl.constexpr,
) -> tl.tensor:
    """The values [GROUPS, WIDTH] of this program as float32; the offset of the codes cancels out with a zero point."""
    per_word: tl.constexpr = 32 // BITS
    words: tl.constexpr = SIZE // per_word
    at = tl.program_id(1) * (WIDTH // per_word) + tl.arange(0, WIDTH // per_word)
    place = packed + first * words + (row[:, None] * words + at[None, :])
    word = tl.load(place, mask=inside[:, None] & (at < words)[None, :], other=0)
    shift = tl.arange(0, per_word) * BITS
    codes = tl.reshape((word[:, :, None] >> shift[None, None, :]) & (2**BITS - 1), [row.shape[0], WIDTH])
    if SYMMETRIC:
        zero = tl.zeros_like(row) + 2 ** (BITS - 1)
    else:
        line = (first + row) // PER_ROW
        stored = tl.load(zeros + (line // per_word * PER_ROW + (first + row) % PER_ROW), mask=inside, other=0)
        zero = (stored >> (line % per_word * BITS).to(tl.int32)) & (2**BITS - 1)
    scale = _float(tl.load(scales + first + row, mask=inside, other=0), SCALE)
    return (codes - zero[:, None]).to(tl.float32) * scale[:, None]


@triton.jit
def _float(raw: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    if DTYPE == "BF16":
        return (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return raw.to(tl.float32)


@triton.jit
def _stored(value: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """`value` rounded to DTYPE, half to even."""
    if DTYPE == "BF16":
        bits = value.to(tl.int32, bitcast=True)
        nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        return tl.where(value == value, nearest, 0x7FC0).to(tl.int16)
    elif DTYPE == "F16":
        return value.to(tl.float16)
    else:
        return value


def _shape(
    columns: int, scale: torch.Tensor, zero_point: torch.Tensor | None, bits: int
) -> tuple[tuple[int, int], dict[str, object]]:
    """Programs, and what kernels are built for."""
    size = columns // scale.shape[1]
    width = min(triton.next_power_of_2(size), TILE)
    groups = TILE // width
    shape = {"PER_ROW": scale.shape[1], "SIZE": size, "WIDTH": width, "GROUPS": groups, "BITS": bits}
    grid = (-(-scale.numel() // groups), -(-size // width))
    return grid, {**shape, "SYMMETRIC": zero_point is None, "SCALE": _name(scale.dtype)}


def _inputs(packed: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    return packed, _bits(scale), packed if zero_point is None else zero_point


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def _name(dtype: torch.dtype) -> str:
    import torch

    return {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}[dtype]
