"""The verifier's numpy arithmetic, bit for bit against compressed-tensors (eager) and torch in F32 (as Triton does)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from verify.arithmetic import (
    MODES,
    Grid,
    Mode,
    codes_of,
    pack_rows,
    rounded,
    scales_of,
    spill,
    to_float32,
    unpack_columns,
    unpack_rows,
    values_of,
)

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def raw(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return tensor.contiguous().view(torch.uint8).numpy().reshape(-1)


def weights(dtype: torch.dtype, rows: int = 64, columns: int = 256) -> torch.Tensor:
    """Gaussian rows, and the awkward ones: zero, subnormal, constant, one outlier, one sign, exact ties."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(7)) * 0.02
    weight[0] = 0
    weight[1, : columns // 2] = 0
    weight[2] *= 1e-6 if dtype != torch.float16 else 1e-4
    weight[3] = 0.5
    weight[4, 5] = 100.0
    weight[5] = weight[5].abs()
    weight[6] = -weight[6].abs()
    weight[7] = torch.arange(columns).remainder(31).sub(15) / 2  # scale 1, every half a tie
    weight[8] = -0.0
    return weight.to(dtype)


def test_values_are_read_exactly() -> None:
    for name, dtype in DTYPES.items():
        weight = weights(dtype)
        assert np.array_equal(to_float32(raw(weight), name), weight.float().numpy().reshape(-1))


@pytest.mark.parametrize("name", ["BF16", "F16"])
def test_rounding_is_torchs(name: str) -> None:
    """Over all signs and exponents, on both sides of ties, subnormals and overflow included."""
    bits = np.random.default_rng(3).integers(0, 1 << 32, 1 << 18, dtype=np.uint32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16) | 0x8000
    values = np.concatenate([bits, ties, ties - 1, ties + 1]).view(np.float32)
    values = values[~np.isnan(values)]
    expected = torch.from_numpy(values.copy()).to(DTYPES[name]).float().numpy()
    assert np.array_equal(rounded(values, name), expected)


def test_rounding_keeps_nan() -> None:
    values = np.array([np.nan, 1.0], np.float32)
    assert np.isnan(rounded(values, "BF16"))[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 128, None])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", DTYPES)
def test_codes_are_compressed_tensors(name: str, bits: int, group: int | None, symmetric: bool, mode: Mode) -> None:
    weight = weights(DTYPES[name])
    scale, zero, codes = reference(weight, bits, group, symmetric, mode)
    grid = Grid(name, bits, group or weight.shape[1], symmetric)
    values = to_float32(raw(weight), name).reshape(weight.shape)
    our_scale, our_zero = scales_of(values, grid)
    assert np.array_equal(our_scale, scale.float().numpy())
    assert (our_zero is None) == symmetric
    if our_zero is not None:
        assert np.array_equal(our_zero, zero.float().numpy())
    assert np.array_equal(codes_of(values, our_scale, our_zero, grid, mode), codes.numpy())


def reference(
    weight: torch.Tensor, bits: int, group: int | None, symmetric: bool, mode: Mode
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    strategy = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, **strategy)
    grouped = weight.reshape(len(weight), -1, group or weight.shape[1])
    scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), args)
    if mode == "eager":
        codes = quantize(weight, scale, None if symmetric else zero, args, dtype=torch.int8)
    else:
        # triton: tl.div_rn of both widened to F32, the zero point added, clamped and rounded to even
        quotient = grouped.float() / scale.float().unsqueeze(-1) + (0 if symmetric else zero.float().unsqueeze(-1))
        codes = quotient.clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).round().flatten(1)
    return scale, zero, codes.to(torch.int16)


@pytest.mark.parametrize("columns", [256, 100, 33])
@pytest.mark.parametrize("bits", [4, 8])
def test_packing_is_compressed_tensors(bits: int, columns: int) -> None:
    from compressed_tensors.compressors import pack_to_int32

    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (24, columns), generator=generator, dtype=torch.int8)
    packed = raw(pack_to_int32(codes, bits)).reshape(24, -1)
    assert np.array_equal(pack_rows(codes.numpy().astype(np.int16), bits), packed)
    assert np.array_equal(unpack_rows(packed, bits, columns), codes.numpy())
    assert not spill(packed, bits, columns)


@pytest.mark.parametrize("rows", [24, 20, 3])
@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_are_packed_along_rows(bits: int, rows: int) -> None:
    from compressed_tensors.compressors import pack_to_int32

    generator = torch.Generator().manual_seed(2)
    zeros = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (rows, 5), generator=generator, dtype=torch.int8)
    packed = pack_to_int32(zeros, bits, packed_dim=0).contiguous()
    assert np.array_equal(unpack_columns(raw(packed).reshape(-1, 5, 4), bits, rows), zeros.numpy())


@pytest.mark.parametrize("bits, columns", [(4, 33), (4, 100), (8, 33)])
def test_bits_behind_the_last_column_are_seen(bits: int, columns: int) -> None:
    packed = pack_rows(np.zeros((2, columns), np.int16), bits)
    packed[1, -1] |= 0x80
    assert spill(packed, bits, columns)


def test_values_of_a_worked_example() -> None:
    codes = np.array([[-8, 7, 0, 3]], np.int16)
    scale, zeros = np.array([[0.5, 2.0]], np.float32), np.array([[1.0, -1.0]], np.float32)
    assert values_of(codes, scale, None, 2).tolist() == [[-4.0, 3.5, 0.0, 6.0]]
    assert values_of(codes, scale, zeros, 2).tolist() == [[-4.5, 3.0, 2.0, 8.0]]
