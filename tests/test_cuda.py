"""Packing on a GPU: the bits of the reference, whatever the thread, the memory and the way; refusals without one."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("compressed_tensors")

from test_blocks import raw, same  # noqa: E402
from test_rtn import DTYPES, awkward  # noqa: E402

from checkpoint import MissingExtra, Refused  # noqa: E402
from surgery.blocks import reference  # noqa: E402
from surgery.cuda import Cuda  # noqa: E402
from surgery.rtn import NotFinite  # noqa: E402
from surgery.scheme import Maths, Scheme  # noqa: E402

MATHS: tuple[Maths, ...] = ("eager", "fp32")
SCHEMES = [Scheme(bits, size, even) for bits in (4, 8) for size in (3, 32, 48, None) for even in (True, False)]

with_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def gpu() -> Cuda:
    return Cuda()


@pytest.fixture(scope="module")
def plain() -> Cuda:
    """As where Triton does not run."""
    cuda = Cuda()
    cuda.kernels = None
    return cuda


@with_gpu
@pytest.mark.parametrize("maths", MATHS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_those_of_the_reference_with_triton_and_without(
    gpu: Cuda, plain: Cuda, dtype: str, scheme: Scheme, maths: Maths
) -> None:
    data = raw(awkward(DTYPES[dtype], rows=33))
    expected = reference(data, 384, dtype, scheme, maths)
    assert same(gpu.pack(data, 384, dtype, scheme, maths), expected)
    assert same(plain.pack(data, 384, dtype, scheme, maths), expected)


@with_gpu
def test_rows_that_end_inside_a_word_are_filled_up(gpu: Cuda) -> None:
    data = raw(awkward(torch.bfloat16)[:, :33])
    assert same(
        gpu.pack(data, 33, "BF16", Scheme(4, None), "fp32"), reference(data, 33, "BF16", Scheme(4, None), "fp32")
    )


@with_gpu
def test_data_may_lie_in_the_buffer_in_a_part_of_it_or_elsewhere(gpu: Cuda) -> None:
    weight, scheme = awkward(torch.bfloat16), Scheme(4, 32)
    expected = reference(raw(weight), 384, "BF16", scheme, "fp32")
    buffer = gpu.buffer(2 * weight.nbytes)
    for start in (0, weight.nbytes):
        part = buffer[start : start + weight.nbytes]
        part[:] = raw(weight)
        assert same(gpu.pack(part, 384, "BF16", scheme, "fp32"), expected)
    assert same(gpu.pack(memoryview(bytes(raw(weight))), 384, "BF16", scheme, "fp32"), expected)


@with_gpu
@pytest.mark.parametrize("symmetric", [True, False])
def test_blocks_of_one_kind_are_packed_alike_however_often_they_come(gpu: Cuda, symmetric: bool) -> None:
    scheme, generator = Scheme(4, 32, symmetric), torch.Generator().manual_seed(11)
    for rows in (8, 8, 8, 8, 96, 8, 8, 8):  # the fifth replaces the buffers of the others
        data = raw(torch.randn(rows, 4096, generator=generator).bfloat16())
        found = gpu.pack(data, 4096, "BF16", scheme, "fp32")
        assert same(found, reference(data, 4096, "BF16", scheme, "fp32"))


@with_gpu
def test_threads_side_by_side_do_not_disturb_each_other(gpu: Cuda) -> None:
    weights = [awkward(torch.bfloat16, rows=rows) for rows in range(8, 72)]

    def holds(case: tuple[torch.Tensor, Scheme]) -> bool:
        weight, scheme = case
        buffer = gpu.buffer(weight.nbytes)
        buffer[:] = raw(weight)
        return same(gpu.pack(buffer, 384, "BF16", scheme, "fp32"), reference(raw(weight), 384, "BF16", scheme, "fp32"))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(holds, product(weights, (Scheme(4, 32), Scheme(8, 128, symmetric=False)))))


@with_gpu
@pytest.mark.parametrize("symmetric", [True, False])
def test_what_is_not_finite_is_refused_and_the_next_is_packed(gpu: Cuda, plain: Cuda, symmetric: bool) -> None:
    weight, scheme = awkward(torch.bfloat16), Scheme(4, 32, symmetric)
    broken = weight.clone()
    broken[40, 200] = float("nan")
    for packer in (gpu, plain):
        with pytest.raises(NotFinite):
            packer.pack(raw(broken), 384, "BF16", scheme, "fp32")
        found = packer.pack(raw(weight), 384, "BF16", scheme, "fp32")
        assert same(found, reference(raw(weight), 384, "BF16", scheme, "fp32"))


@with_gpu
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(Refused, match="no CUDA device 999"):
        Cuda(999)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_is_refused_with_the_way_out() -> None:
    with pytest.raises(Refused, match=r"sees no CUDA device.*--device cpu"):
        Cuda()


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"ckpt-surgery\[torch\]"):
        Cuda()
