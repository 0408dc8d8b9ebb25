"""The Triton kernels: packing gives the bits of the torch reference, the inverse the values of `verify`'s arithmetic.

Compiled where there is a GPU, and everywhere by Triton's interpreter, in a process that was started for it: whether
kernels are interpreted is settled when triton is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="triton is not installed; it comes with a torch for CUDA")

import numpy as np  # noqa: E402
from test_blocks import any_bits, raw  # noqa: E402
from test_rtn import DTYPES, awkward  # noqa: E402

from surgery import triton_packing as packing  # noqa: E402
from surgery.blocks import PackedRows, reference  # noqa: E402
from surgery.packing import packed_width  # noqa: E402
from surgery.scheme import Maths, Scheme  # noqa: E402
from verify import triton_kernels as judging  # noqa: E402
from verify.arithmetic import unpack_columns, unpack_rows, values_of  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
SCHEMES = [Scheme(bits, size, even) for bits in (4, 8) for size in (32, 48, None) for even in (True, False)]
MATHS: tuple[Maths, ...] = ("eager", "fp32")

if INTERPRETED:  # each program costs the same, whatever its size
    packing.TILE = judging.TILE = 8192

runs = pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="no CUDA device; interpreted by the last test")


def packed_by_kernel(weight: torch.Tensor, scheme: Scheme, maths: Maths) -> tuple[list[bytes | None], bool]:
    """What is to be stored, and whether the kernel refused; buffers are filled with what no output is before."""
    rows, columns = weight.shape
    groups = columns // (scheme.group_size or columns)
    packed = torch.full((rows * columns * scheme.bits // 32,), 0x55555555, dtype=torch.int32, device=DEVICE)
    scale = torch.full((rows * groups,), -1, dtype=weight.dtype, device=DEVICE)
    zeros = None if scheme.symmetric else torch.full((rows, groups), 255, dtype=torch.uint8, device=DEVICE)
    refused = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    packing.pack(weight.to(DEVICE), scheme, maths, packed, scale, zeros, refused)
    words = None
    if zeros is not None:
        words = torch.full((packed_width(rows, scheme.bits) * groups,), -1, dtype=torch.int32, device=DEVICE)
        packing.pack_zero_points(zeros, scheme.bits, words)
    return [part if part is None else bytes(raw(part.cpu().reshape(-1))) for part in (packed, scale, words)], bool(
        refused
    )


def stored(rows: PackedRows) -> list[bytes | None]:
    return [part and part.tobytes() for part in rows]


def name_of(dtype: torch.dtype) -> str:
    return next(name for name, kind in DTYPES.items() if kind == dtype)


def assert_same_bits(weight: torch.Tensor, scheme: Scheme, maths: Maths) -> None:
    found, refused = packed_by_kernel(weight, scheme, maths)
    expected = reference(raw(weight), weight.shape[1], name_of(weight.dtype), scheme, maths)
    assert not refused
    assert found == stored(expected)


def every_quotient() -> torch.Tensor:
    """BF16 rows, one for each significand of the largest value, which sets the scale of the row: beside it values of
    every significand in nine binades, of both signs. The interpreter, being slow, gets a third of the rows."""
    tops = torch.arange(128, 256).float()
    values = (tops.view(-1, 1) * torch.pow(2.0, -torch.arange(9.0))).flatten()
    rows = [torch.where(values <= top, values, top) for top in (tops[::3] if INTERPRETED else tops)]
    weight = torch.stack(rows).bfloat16()
    return torch.cat([weight, -weight], 1)


@runs
@pytest.mark.parametrize("maths", MATHS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_equals_the_reference_bit_for_bit(dtype: str, scheme: Scheme, maths: Maths) -> None:
    assert_same_bits(awkward(DTYPES[dtype], rows=33), scheme, maths)


@runs
@pytest.mark.parametrize("maths", MATHS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_bf16_values_of_all_magnitudes_give_the_same_bits(scheme: Scheme, maths: Maths) -> None:
    assert_same_bits(torch.cat([any_bits(seed) for seed in range(3)]), scheme, maths)


@runs
@pytest.mark.parametrize("maths", MATHS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_every_quotient_of_two_bf16_significands_gives_the_same_code(bits: int, symmetric: bool, maths: Maths) -> None:
    assert_same_bits(every_quotient(), Scheme(bits, None, symmetric), maths)


@runs
@pytest.mark.parametrize("columns", [8, 2048, 4096, 4104, 9000])
@pytest.mark.parametrize("symmetric", [True, False])
def test_rows_of_any_length_are_one_group(columns: int, symmetric: bool) -> None:
    weight = torch.randn(3, columns, generator=torch.Generator().manual_seed(5)).bfloat16()
    assert_same_bits(weight, Scheme(4, None, symmetric), "fp32")


@runs
@pytest.mark.parametrize("value", [float("nan"), float("-nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [32, None])
def test_what_is_not_finite_is_refused(value: float, symmetric: bool, dtype: str, size: int | None) -> None:
    weight = torch.ones(3, 4480, dtype=DTYPES[dtype])
    weight[2, 4479] = value
    assert packed_by_kernel(weight, Scheme(4, size, symmetric), "fp32")[1]


@runs
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_range_that_overflows_is_refused_where_it_is_taken(dtype: str) -> None:
    weight = torch.zeros(2, 64, dtype=DTYPES[dtype])
    weight[0, 0], weight[0, 1] = torch.finfo(weight.dtype).max, torch.finfo(weight.dtype).min
    assert packed_by_kernel(weight, Scheme(4, 32, symmetric=False), "fp32")[1]
    assert_same_bits(weight, Scheme(4, 32), "fp32")


@runs
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_weights_stand_for_what_verify_takes_them_for(dtype: str, scheme: Scheme) -> None:
    weight = awkward(DTYPES[dtype], rows=33)
    rows, columns = weight.shape
    size = scheme.group_size or columns
    found = reference(raw(weight), columns, dtype, scheme, "fp32")
    packed = torch.frombuffer(found.packed, dtype=torch.int32).view(rows, -1)
    scale = torch.frombuffer(found.scale, dtype=weight.dtype).view(rows, -1)
    codes = unpack_rows(packed.numpy().view(np.uint8), scheme.bits, columns)
    zero_point, zeros = None, None
    if found.zero_point is not None:
        zero_point = torch.frombuffer(found.zero_point, dtype=torch.int32).view(-1, columns // size).to(DEVICE)
        parts = np.frombuffer(found.zero_point, np.uint8).reshape(-1, columns // size, 4)
        zeros = unpack_columns(parts, scheme.bits, rows).astype(np.float32)
    expected = torch.from_numpy(values_of(codes, scale.float().numpy(), zeros, size))
    stored_parts = (packed.to(DEVICE), scale.to(DEVICE), zero_point, scheme.bits)
    for kind in DTYPES.values():
        values = judging.dequantize(*stored_parts, kind).cpu()
        assert torch.equal(values.view(torch.uint8), expected.to(kind).view(torch.uint8))
    error, norm = judging.squared_error(weight.to(DEVICE), *stored_parts)
    assert error == pytest.approx((expected.double() - weight.double()).square().sum().item(), rel=1e-5)
    assert norm == pytest.approx(weight.double().square().sum().item(), rel=1e-5)


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreted run")
def test_all_of_this_holds_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__]
    run = subprocess.run(
        command,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
