"""Launching the kernels that pack. Importing this needs triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton

from surgery.packing import packed_width
from surgery.scheme import Maths, Scheme
from surgery.triton_kernels import pack_groups, pack_zeros

if TYPE_CHECKING:
    import torch

TILE = 1024
"""Elements of a program, unless a group has more."""

WARP = 1024
"""Elements of 32 threads: each has 4 loads of 16 bytes under way, and one warp alone never waits for another."""

WIDEST = 4096
"""Elements of a group that a program holds at a time; longer ones are read twice."""

ZEROS = 128
"""Words of packed zero points of a program."""


def fits(columns: int, scheme: Scheme) -> bool:
    """Do groups fill whole words? Other rows the kernel cannot pack."""
    return (scheme.group_size or columns) * scheme.bits % 32 == 0


def pack(
    weight: torch.Tensor,
    scheme: Scheme,
    maths: Maths,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zeros: torch.Tensor | None,
    refused: torch.Tensor,
) -> None:
    """Pack `weight` [R, C] on the current stream into contiguous tensors; rows have to fit.

    `packed` int32 takes the words, `scale` of the weight's dtype and, unless symmetric, `zeros` uint8 [R, G] what their
    names say; `refused` int32 becomes 1 where a group is not finite.
    """
    import torch

    size = scheme.group_size or weight.shape[1]
    width = min(triton.next_power_of_2(size), WIDEST)
    groups = max(1, TILE // width)
    count = weight.numel() // size
    name = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}[weight.dtype]
    pack_groups[(-(-count // groups),)](
        weight.view(torch.int16) if name == "BF16" else weight,
        packed,
        scale.view(torch.int16) if name == "BF16" else scale,
        refused if zeros is None else zeros,
        refused,
        count,
        SIZE=size,
        WIDTH=width,
        GROUPS=groups,
        BITS=scheme.bits,
        SYMMETRIC=scheme.symmetric,
        EAGER=maths == "eager",
        DTYPE=name,
        EPS=torch.finfo(weight.dtype).eps,
        num_warps=max(1, groups * width // WARP),
    )


def pack_zero_points(zeros: torch.Tensor, bits: int, words: torch.Tensor) -> None:
    """Zero points `zeros` uint8 [R, G], as `pack` leaves them, to `words` int32, as many as `pack_columns` makes."""
    rows, groups = zeros.shape
    grid = (packed_width(rows, bits), -(-groups // ZEROS))
    pack_zeros[grid](zeros, words, rows, groups, BITS=bits, WIDTH=ZEROS, num_warps=1)
