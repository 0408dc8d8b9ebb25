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
    """The weights hold NaN or Inf, for which no code exists."""


def quantize_rows(weight: torch.Tensor, scheme: Scheme, maths: Maths) -> Codes:
    """Quantize `weight` [R, C] of dtype T (BF16, F16, F32). C must be a multiple of the group size.

    Raises NotFinite.
    """
    rows, columns = weight.shape
    groups = weight.float().view(rows, -1, scheme.group_size or columns)
    quantize = _symmetric if scheme.symmetric else _asymmetric
    codes, scale, zero_point = quantize(groups, scheme.bits, weight.dtype, maths)
    return Codes(codes.view(rows, columns), scale, zero_point)


def _symmetric(groups: torch.Tensor, bits: int, dtype: torch.dtype, maths: Maths) -> Codes:
    import torch

    half = 2 ** (bits - 1)
    largest = groups.abs().amax(-1)
    _require_finite(largest)
    scale = _nonzero((largest / (half - 0.5)).to(dtype))
    quotient = _divide(groups, scale, dtype, maths)
    codes = quotient.clamp_(-half, half - 1).round_().add_(half).to(torch.uint8)
    return Codes(codes, scale, None)


def _asymmetric(groups: torch.Tensor, bits: int, dtype: torch.dtype, maths: Maths) -> Codes:
    import torch

    half = 2 ** (bits - 1)
    low, high = groups.amin(-1).clamp_(max=0), groups.amax(-1).clamp_(min=0)
    _require_finite(high - low)
    scale = ((high - low).to(dtype).float() / (2 * half - 1)).to(dtype)
    offset = (low / scale.float()).to(dtype).float()
    # an all-zero group divides 0 by 0; its zero point is 0, as the integer cast upstream makes of NaN
    zero_point = (-half - offset).to(dtype).float().clamp_(-half, half - 1).nan_to_num_(0.0).round_()
    scale = _nonzero(scale)
    shifted = _divide(groups, scale, dtype, maths).add_(zero_point.unsqueeze(-1))
    if maths == "eager" and dtype != torch.float32:
        shifted = shifted.to(dtype).float()
    codes = shifted.clamp_(-half, half - 1).round_().add_(half).to(torch.uint8)
    return Codes(codes, scale, zero_point.add_(half).to(torch.uint8))


def _divide(groups: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, maths: Maths) -> torch.Tensor:
    import torch

    quotient = groups.div_(scale.float().unsqueeze(-1))
    return quotient.to(dtype).float() if maths == "eager" and dtype != torch.float32 else quotient


def _nonzero(scale: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.where(scale == 0, torch.finfo(scale.dtype).eps, scale)


def _require_finite(values: torch.Tensor) -> None:
    import torch

    if not torch.isfinite(values).all():
        raise NotFinite
