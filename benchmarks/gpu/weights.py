"""Random weights on the GPU, and rows that are hard to pack."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SPREAD = 0.02


def gaussian(rows: int, columns: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """N(0, SPREAD), as weights are."""
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    weight = torch.empty((rows, columns), dtype=dtype, device="cuda")
    for start in range(0, rows, 1 << 14):
        part = weight[start : start + (1 << 14)]
        part.copy_(torch.randn(part.shape, generator=generator, device="cuda").mul_(SPREAD))
    return weight


def hard(dtype: str, columns: int, seed: int) -> torch.Tensor:
    """Rows of Gaussian values, of values of all magnitudes from subnormal to huge, of halfway cases, and of zeros."""
    import torch

    kind = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[dtype]
    words = torch.int32 if kind == torch.float32 else torch.int16
    generator = torch.Generator().manual_seed(seed)
    limit = 2 ** (8 * words.itemsize - 1)
    any_bits = torch.randint(-limit, limit, (512, columns), generator=generator).to(words).view(kind)
    any_bits = torch.where(any_bits.abs() < torch.finfo(kind).max / 32, any_bits, 0)
    plain = torch.randn(256, columns, generator=generator) * SPREAD
    tiny = plain[:64] * torch.finfo(kind).tiny
    halfway = torch.randint(-255, 256, (64, columns), generator=generator) * 0.5
    zeros = torch.zeros(32, columns)
    one_sign = torch.cat([plain[:16].abs(), -plain[:16].abs()])
    return torch.cat([any_bits, *(part.to(kind) for part in (plain, tiny, halfway, zeros, one_sign))])


def raw(weight: torch.Tensor) -> memoryview:
    """The bytes of a matrix in this machine's memory."""
    import torch

    return memoryview(bytearray(weight.contiguous().view(torch.uint8).numpy().tobytes()))
