"""Round-to-nearest quantization and its inverse in numpy: a second, independent statement of what exports should hold.

The maths is compressed-tensors' own, in the two forms in which it exists. With T the dtype of the weight:

    scale = T(max(|min|, |max|) / ((2^b - 1) / 2))              of each group; finfo(T).eps where that is 0
    codes = rint(clamp(T(w / scale), -2^(b-1), 2^(b-1) - 1))    `eager`: the CPU, and CUDA up to compressed-tensors 0.18
    codes = rint(clamp(f32(w / scale), ...))                    `fp32`: the Triton kernel of 0.19 and later

Asymmetric groups add a zero point (`calculate_qparams` in compressed_tensors/quantization/utils/helpers.py). BF16 has
no numpy dtype: its values are held as F32, and rounding to it is done on the bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Bytes = NDArray[np.uint8]
    Codes = NDArray[np.int16]

Mode = Literal["eager", "fp32"]
MODES: tuple[Mode, ...] = ("fp32", "eager")

EPS = {"BF16": 2.0**-7, "F16": 2.0**-10, "F32": 2.0**-23}
"""`torch.finfo(T).eps`."""

SUPPORTED_BITS = (4, 8)


@dataclass(frozen=True)
class Grid:
    """How a block of rows is quantized: `group` columns share a scale (all of a row: its length)."""

    dtype: str
    bits: int
    group: int
    symmetric: bool

    @property
    def low(self) -> int:
        return -(1 << (self.bits - 1))

    @property
    def high(self) -> int:
        return (1 << (self.bits - 1)) - 1


def to_float32(raw: Bytes, dtype: str) -> Floats:
    """The stored values of a BF16, F16 or F32 tensor, exactly."""
    import numpy as np

    if dtype == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return raw.view(np.float16).astype(np.float32) if dtype == "F16" else raw.view(np.float32)


def rounded(values: Floats, dtype: str) -> Floats:
    """`values` rounded to `dtype`, to nearest and ties to even; finite values that overflow become infinite."""
    import numpy as np

    if dtype == "F32":
        return values
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(values).view(np.uint32)
    # Adding 0x7FFF, or 0x8000 where the kept part is odd, carries into it exactly when it has to be rounded up.
    carried = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    result: Floats = (carried & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(values), values, result) if np.isnan(values).any() else result


def scales_of(weight: Floats, grid: Grid) -> tuple[Floats, Floats | None]:
    """Scales and zero points [rows, groups] of `weight` [rows, columns], in F32; no zero points if symmetric."""
    import numpy as np

    grouped = weight.reshape(len(weight), -1, grid.group)
    low = np.minimum(grouped.min(axis=-1), np.float32(0))
    high = np.maximum(grouped.max(axis=-1), np.float32(0))
    zeros = None
    if grid.symmetric:
        scale = rounded(np.maximum(-low, high) / np.float32((grid.high - grid.low) / 2), grid.dtype)
    else:
        spread = rounded(high - low, grid.dtype)
        scale = rounded(spread / np.float32(grid.high - grid.low), grid.dtype)
        zeros = _zero_points(low, scale, grid)
    return np.where(scale == 0, np.float32(EPS[grid.dtype]), scale), zeros


def _zero_points(low: Floats, scale: Floats, grid: Grid) -> Floats:
    """Integers as F32. Taken with the scale before its zeros are replaced: such a group has 0 / 0, which casts to 0."""
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        steps = rounded(low / scale, grid.dtype)
    zeros = np.rint(np.clip(rounded(np.float32(grid.low) - steps, grid.dtype), grid.low, grid.high))
    return np.nan_to_num(zeros, nan=0.0)


def codes_of(weight: Floats, scale: Floats, zeros: Floats | None, grid: Grid, mode: Mode) -> Codes:
    """The signed codes [rows, columns] of `weight` under these scales and zero points."""
    import numpy as np

    quotient = weight.reshape(len(weight), -1, grid.group) / scale[..., None]
    if mode == "eager":
        quotient = rounded(quotient, grid.dtype)
    if zeros is not None:
        quotient += zeros[..., None]
        if mode == "eager":
            quotient = rounded(quotient, grid.dtype)
    np.rint(np.clip(quotient, grid.low, grid.high, out=quotient), out=quotient)
    return quotient.reshape(weight.shape).astype(np.int16)


def values_of(codes: Codes, scale: Floats, zeros: Floats | None, group: int) -> Floats:
    """The weights [rows, columns] that the codes stand for, in F32."""
    import numpy as np

    values = codes.reshape(len(codes), -1, group).astype(np.float32)
    if zeros is not None:
        values -= zeros[..., None]
    values *= scale[..., None]
    return values.reshape(codes.shape)


def pack_rows(codes: Codes, bits: int) -> Bytes:
    """Signed codes [rows, columns] as the bytes of little-endian words, each row filled up with zero bits.

    Element i of a row is stored as code + 2^(bits-1) in bits [i * bits, (i + 1) * bits) of the row.
    """
    import numpy as np

    rows, columns = codes.shape
    width = -(-columns * bits // 32) * 4
    stored = np.zeros((rows, width * 8 // bits), np.uint8)
    stored[:, :columns] = codes + (1 << (bits - 1))
    if bits == 8:
        return stored
    packed: Bytes = stored[:, 0::2] | (stored[:, 1::2] << np.uint8(4))
    return packed


def unpack_rows(packed: Bytes, bits: int, columns: int) -> Codes:
    """The signed codes [rows, columns] in the bytes [rows, width] of packed words."""
    import numpy as np

    stored = packed
    if bits == 4:
        stored = np.empty((len(packed), packed.shape[1] * 2), np.uint8)
        stored[:, 0::2] = packed & np.uint8(0x0F)
        stored[:, 1::2] = packed >> np.uint8(4)
    codes: Codes = stored[:, :columns].astype(np.int16) - np.int16(1 << (bits - 1))
    return codes


def unpack_columns(packed: Bytes, bits: int, rows: int) -> Codes:
    """The signed codes [rows, columns] of zero points, packed along dim 0: bytes [ceil(rows*b/32), columns, 4]."""
    import numpy as np

    turned = np.ascontiguousarray(packed.transpose(1, 0, 2)).reshape(packed.shape[1], -1)
    return np.ascontiguousarray(unpack_rows(turned, bits, rows).T)


def spill(packed: Bytes, bits: int, columns: int) -> bool:
    """Is any of the bits behind the last element of a row set?"""
    used = columns * bits
    tail: Any = packed[:, used // 8 :]
    if used % 8 and tail.shape[1]:
        return bool((tail[:, 0] >> (used % 8)).any() or tail[:, 1:].any())
    return bool(tail.any())
