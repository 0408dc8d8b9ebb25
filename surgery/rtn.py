"""Round-to-nearest quantization of rows, to the bit as compressed-tensors does it.

Source of the formulas: `calculate_qparams` and `quantize` of compressed-tensors 0.13 to 0.20. Arithmetic only: tensors
in, tensors out. Every value is computed in 32-bit floats and rounded to the weight's dtype T where upstream does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from surgery.scheme import Maths, Scheme

if TYPE_CHECKING:
    import torch


class Codes(NamedTuple):
    """`codes`: uint8 [R, C], offset binary; `scale`: T [R, G]; `zero_point`: uint8 [R, G], offset binary, or None."""

    codes: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None


class NotFinite(ValueError):
    """The weights hold NaN or Inf, or a group's range overflows T: no code stands for them."""


def quantize_rows(weight: torch.Tensor, scheme: Scheme, maths: Maths) -> Codes:
    """Quantize `weight` [R, C] of dtype T (BF16, F16, F32). C must be a multiple of the group size.

    Raises NotFinite.
    """
    import torch

    rows, columns = weight.shape
    groups = weight.to(torch.float32, copy=True).view(rows, -1, scheme.group_size or columns)
    quantize = _symmetric if scheme.symmetric else _asymmetric
    codes, scale, zero_point = quantize(groups, scheme.bits, weight.dtype, maths)
    return Codes(codes.view(rows, columns), scale, zero_point)


def _symmetric(groups: torch.Tensor, bits: int, dtype: torch.dtype, maths: Maths) -> Codes:
    import torch

    half = 2 ** (bits - 1)
    largest = torch.maximum(groups.amax(-1), -groups.amin(-1))
    scale = _usable(_over(largest, half - 0.5).to(dtype))
    return Codes(_codes(_divide(groups, scale, dtype, maths), half), scale, None)


def _asymmetric(groups: torch.Tensor, bits: int, dtype: torch.dtype, maths: Maths) -> Codes:
    half = 2 ** (bits - 1)
    low, high = groups.amin(-1).clamp_(max=0), groups.amax(-1).clamp_(min=0)
    scale = _over((high - low).to(dtype).float(), 2 * half - 1).to(dtype)
    offset = (low / scale.float()).to(dtype).float()
    # an all-zero group divides 0 by 0; its zero point is 0, as the integer cast upstream makes of NaN
    zero_point = (-half - offset).to(dtype).float().clamp_(-half, half - 1).nan_to_num_(0.0).round_()
    scale = _usable(scale)
    shifted = _divide(groups, scale, dtype, maths).add_(zero_point.unsqueeze(-1))
    return Codes(_codes(_stored(shifted, dtype, maths), half), scale, _codes(zero_point, half))


def _over(values: torch.Tensor, divisor: float) -> torch.Tensor:
    import torch

    # where the divisor is a number, torch on a GPU multiplies by 1 / divisor, which rounds otherwise
    return values / torch.full((), divisor, dtype=values.dtype, device=values.device)


def _divide(groups: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, maths: Maths) -> torch.Tensor:
    return _stored(groups.div_(scale.float().unsqueeze(-1)), dtype, maths)


def _stored(values: torch.Tensor, dtype: torch.dtype, maths: Maths) -> torch.Tensor:
    """`values` as they are after a step whose result upstream keeps in T: rounded to it in eager maths."""
    return values.to(dtype).float() if maths == "eager" else values


def _codes(values: torch.Tensor, half: int) -> torch.Tensor:
    """Values to uint8 codes q + half, with q the nearest integer in [-half, half - 1], ties to even."""
    import torch

    # a cast to uint8 takes twice as long as one to int8; adding to its bits wraps around, which gives the same
    return values.clamp_(-half, half - 1).round_().to(torch.int8).view(torch.uint8).add_(half)


def _usable(scale: torch.Tensor) -> torch.Tensor:
    """`scale` with eps of its dtype where it is 0. Raises NotFinite, since NaN and Inf in a group reach its scale."""
    import torch

    if not torch.isfinite(scale).all():
        raise NotFinite
    return torch.where(scale == 0, torch.finfo(scale.dtype).eps, scale)
