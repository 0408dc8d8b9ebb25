"""Round-to-nearest packing written down a second time, from the format's formulas, in plain numpy.

Independent of the code under test: nothing of it is imported, and words are put together code by code. BF16 is kept as
float32 whose lower 16 bits are zero; `rounded` is the only place where a value is rounded to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]

EPS = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-23}


def rounded(values: Array, dtype: torch.dtype) -> Array:
    """float32 values to the nearest ones of `dtype`, ties to even, as float32."""
    array: Array = torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(dtype).float().numpy()
    return array


def packed(
    weight: torch.Tensor, bits: int, group_size: int | None, *, symmetric: bool = True
) -> dict[str, torch.Tensor]:
    """The parts of `weight` [R, C] by suffix, the quotient taken in 32 bits ("fp32" maths)."""
    dtype, (rows, columns) = weight.dtype, weight.shape
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    groups = weight.float().numpy().reshape(rows, -1, group_size or columns)
    smallest, largest = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        if symmetric:
            extent = np.maximum(-smallest, largest)
            scale = rounded(extent / np.float32((high - low) / 2), dtype)
            zero_point = np.zeros_like(scale)
        else:
            scale = rounded(rounded(largest - smallest, dtype) / np.float32(high - low), dtype)
            start = rounded(np.float32(low) - rounded(smallest / scale, dtype), dtype)
            zero_point = np.rint(np.clip(np.nan_to_num(start, nan=0.0), low, high))
    scale = np.where(scale == 0, np.float32(EPS[dtype]), scale)
    codes = np.rint(np.clip(groups / scale[..., None] + zero_point[..., None], low, high)).reshape(rows, columns)
    parts = {
        "weight_packed": torch.from_numpy(words(codes - low, bits)),
        "weight_scale": torch.from_numpy(scale).to(dtype),
        "weight_shape": torch.tensor([rows, columns], dtype=torch.int64),
    }
    if not symmetric:
        parts["weight_zero_point"] = torch.from_numpy(words((zero_point - low).T, bits).T.copy())
    return parts


def words(codes: Array, bits: int) -> Array:
    """Unsigned codes [R, C] to int32 [R, ceil(C * bits / 32)]: code i in bits [i * bits, (i + 1) * bits) of its row."""
    per_word = 32 // bits
    rows, columns = codes.shape
    result = np.zeros((rows, -(-columns // per_word)), np.uint32)
    for column in range(columns):
        shift = np.uint32(column % per_word * bits)
        result[:, column // per_word] |= codes[:, column].astype(np.uint32) << shift
    return result.view(np.int32)


def unpacked(parts: dict[str, torch.Tensor], bits: int, group_size: int | None) -> torch.Tensor:
    """(q - zero point) * scale in the dtype of the scale, from the parts of one module."""
    scale = parts["weight_scale"]
    rows, columns = (int(size) for size in parts["weight_shape"])
    codes = _codes(parts["weight_packed"].numpy(), bits, columns)
    start = np.full(scale.shape, 2 ** (bits - 1))
    if "weight_zero_point" in parts:
        start = _codes(parts["weight_zero_point"].numpy().T, bits, rows).T
    groups = codes.reshape(rows, scale.shape[1], -1) - start[..., None]
    values = groups.astype(np.float32) * scale.float().numpy()[..., None]
    return torch.from_numpy(values.reshape(rows, columns)).to(scale.dtype)


def _codes(packed_words: Array, bits: int, columns: int) -> Array:
    unsigned = np.ascontiguousarray(packed_words).view(np.uint32)
    shifts = np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)
    codes = (unsigned[..., None] >> shifts) & np.uint32(2**bits - 1)
    return codes.reshape(len(unsigned), -1)[:, :columns].astype(np.int64)
