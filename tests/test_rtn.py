"""RTN and packing against compressed-tensors' own observer, quantizer and packer."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("compressed_tensors")

from compressed_tensors.compressors import pack_to_int32  # noqa: E402
from compressed_tensors.quantization import QuantizationArgs  # noqa: E402
from compressed_tensors.quantization.lifecycle.forward import quantize  # noqa: E402
from compressed_tensors.quantization.utils import calculate_qparams  # noqa: E402

from surgery.packing import pack_columns, pack_rows  # noqa: E402
from surgery.rtn import NotFinite, quantize_rows  # noqa: E402
from surgery.scheme import Scheme  # noqa: E402

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
SCHEMES = [Scheme(bits, size, even) for bits in (4, 8) for size in (32, 128, None) for even in (True, False)]


def awkward(dtype: torch.dtype, rows: int = 64, columns: int = 384) -> torch.Tensor:
    """Weights with what goes wrong at the edges: zero groups, subnormals, outliers, one sign only, halfway cases."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(7)) * 0.05
    weight[0] = 0
    weight[1, :128] = 0
    weight[2] = torch.finfo(dtype).tiny * torch.linspace(-0.9, 0.9, columns)
    weight[3, 5] = 3e4
    weight[4] = weight[4].abs()
    weight[5] = -weight[5].abs()
    weight[6] = torch.arange(columns) % 16 * 0.5
    weight[7] = -7.5 + torch.arange(columns) % 16
    return weight.to(dtype)


def upstream(weight: torch.Tensor, scheme: Scheme, *, fp32: bool = False) -> dict[str, torch.Tensor]:
    """The same by compressed-tensors; `fp32` gives its quantizer 32-bit values, which is what its GPU kernel takes."""
    args = QuantizationArgs(**scheme.arguments)
    grouped = weight.unflatten(-1, (-1, scheme.group_size or weight.shape[1]))
    scale, zero_point = calculate_qparams(grouped.amin(-1), grouped.amax(-1), args)
    cast = (lambda t: t.float()) if fp32 else (lambda t: t)
    codes = quantize(cast(weight), cast(scale), zero_point, args, dtype=torch.int8)
    result = {"packed": pack_to_int32(codes, scheme.bits), "scale": scale}
    if not scheme.symmetric:
        result["zero_point"] = pack_to_int32(zero_point.to(torch.int8), scheme.bits, packed_dim=0)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("maths", ["eager", "fp32"])
def test_codes_scales_and_zero_points_equal_upstream_bit_for_bit(dtype: str, scheme: Scheme, maths: str) -> None:
    weight = awkward(DTYPES[dtype])
    expected = upstream(weight, scheme, fp32=maths == "fp32")
    codes, scale, zero_point = quantize_rows(weight, scheme, maths)
    assert torch.equal(pack_rows(codes, scheme.bits).view(torch.int32), expected["packed"])
    assert scale.dtype == weight.dtype
    assert torch.equal(scale.view(torch.uint8), expected["scale"].contiguous().view(torch.uint8))
    if zero_point is not None:
        assert torch.equal(pack_columns(zero_point, scheme.bits), expected["zero_point"])


@pytest.mark.parametrize("columns", [8, 9, 15, 31, 33])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_are_padded_to_a_word_with_zero_bits(columns: int, bits: int) -> None:
    codes = torch.randint(0, 2**bits, (5, columns), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    signed = (codes.int() - 2 ** (bits - 1)).to(torch.int8)
    packed = pack_rows(codes, bits).view(torch.int32)
    assert torch.equal(packed, pack_to_int32(signed, bits))


def test_scale_of_all_zero_group_is_the_eps_of_the_dtype() -> None:
    for dtype in DTYPES.values():
        scale = quantize_rows(torch.zeros(2, 64, dtype=dtype), Scheme(4, 32), "fp32").scale
        assert (scale == torch.finfo(dtype).eps).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_that_are_not_finite_are_refused(value: float, symmetric: bool) -> None:
    weight = torch.ones(4, 64, dtype=torch.bfloat16)
    weight[3, 63] = value
    with pytest.raises(NotFinite):
        quantize_rows(weight, Scheme(4, 32, symmetric), "fp32")


def test_the_two_maths_modes_differ_by_one_code_at_most_and_do_differ() -> None:
    weight = torch.randn(512, 512, generator=torch.Generator().manual_seed(3)).bfloat16()
    eager = quantize_rows(weight, Scheme(8, 128), "eager").codes.int()
    fp32 = quantize_rows(weight, Scheme(8, 128), "fp32").codes.int()
    difference = (eager - fp32).abs()
    assert difference.max() == 1
    assert 0.08 < (difference > 0).float().mean() < 0.12  # 10.1 % on Gaussian weights
