"""Codes to 32-bit words as `pack-quantized` stores them.

Element i of a row occupies bits [i*b, (i+1)*b) of the row's little-endian bit stream; a row ends on a word, filled up
with zero bits. Zero points are packed the same way along the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def packed_width(columns: int, bits: int) -> int:
    """Words that hold `columns` codes of `bits`."""
    return -(-columns * bits // 32)


def pack_rows(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [R, C] offset-binary codes to uint8 [R, 4 * packed_width], the words' bytes in memory order."""
    import torch

    padding = packed_width(codes.shape[1], bits) * (32 // bits) - codes.shape[1]
    if padding:
        codes = torch.nn.functional.pad(codes, (0, padding))
    if bits == 8:
        return codes
    pairs = codes.view(torch.int16)  # element 2k in the low byte, 2k+1 in the high byte
    return (pairs | (pairs >> 4)).to(torch.uint8)


def pack_columns(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [R, G] to int32 [packed_width(R), G]: zero points, packed along the rows."""
    import torch

    # a [R, 1] transpose passes for contiguous with a row stride of 1, which no word view can have; clone gives it R
    rows = codes.t().clone(memory_format=torch.contiguous_format)
    words = pack_rows(rows, bits).view(torch.int32)
    return words.t().contiguous()
