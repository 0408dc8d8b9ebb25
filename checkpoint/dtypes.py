"""The element types of safetensors and their widths.

Source: `Dtype` in safetensors 0.8. Types below one byte are stored densely, so a tensor's size is given in bits first.
Numbers are limited to 64 bits, and so is a product of dimensions on its way, since other readers hold them in such.
"""

from __future__ import annotations

from checkpoint.errors import brief

BITS: dict[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

FLOATS = frozenset({"BF16", "F16", "F32"})
"""The types a weight may have before it is packed."""


LIMIT = 1 << 64
"""No count, size or offset reaches this."""


def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of `shape`. Raises ValueError where they are no whole number, or beyond 64 bits."""
    elements = 1
    for length in shape:
        elements *= length
        if elements >= LIMIT:
            raise ValueError(f"{dtype} {brief(list(shape))} has more elements than 64 bits can count")
    bits = BITS[dtype] * elements
    if bits >= LIMIT:
        raise ValueError(f"{dtype} {brief(list(shape))} has more bits than 64 bits can count")
    if bits % 8:
        raise ValueError(f"{dtype} {brief(list(shape))} is {bits} bits, not a whole number of bytes")
    return bits // 8


def itemsize(dtype: str) -> int:
    """Alignment of an element in bytes (1 for sub-byte types)."""
    return max(1, BITS[dtype] // 8)
