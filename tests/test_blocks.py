"""The fused kernel gives the bits of the torch reference, which `test_rtn` holds against compressed-tensors."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

from test_rtn import SCHEMES, awkward  # noqa: E402

from surgery.blocks import PackedRows, fused, kernels, pack_block, reference  # noqa: E402
from surgery.rtn import NotFinite  # noqa: E402
from surgery.scheme import Maths, Scheme  # noqa: E402

MATHS: tuple[Maths, ...] = ("eager", "fp32")


def raw(weight: torch.Tensor) -> memoryview:
    return memoryview(bytearray(weight.contiguous().view(torch.uint8).numpy().tobytes()))


def same(one: PackedRows, other: PackedRows) -> bool:
    return [part and part.tobytes() for part in one] == [part and part.tobytes() for part in other]


def any_bits(seed: int) -> torch.Tensor:
    """BF16 values of all magnitudes from random bits, the largest left out: their ranges overflow."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-(2**15), 2**15, (40, 384), generator=generator).to(torch.int16).view(torch.bfloat16)
    return torch.where(values.abs() < 1e37, values, 0)


@pytest.mark.parametrize("maths", MATHS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_fused_kernel_equals_the_reference_bit_for_bit(scheme: Scheme, maths: Maths) -> None:
    samples = [awkward(torch.bfloat16), *(any_bits(seed) for seed in range(5))]
    for weight in samples:
        columns = weight.shape[1]
        assert same(fused(raw(weight), columns, scheme, maths), reference(raw(weight), columns, "BF16", scheme, maths))


def every_quotient(low: float) -> torch.Tensor:
    """Rows of groups of 32: for each of the 128 significands that a group's maximum can have, every BF16 value of nine
    binades below it, both signs. What a power of two multiplies all by changes no code. `low` times the maximum stands
    in each group too, so that an asymmetric one reaches that far."""
    groups = []
    for top in torch.arange(0x4300, 0x4380, dtype=torch.int16):
        below = torch.arange(int(top) - 9 * 128, int(top) + 1, dtype=torch.int16)
        values = torch.cat([below, below | -(2**15)]).view(torch.bfloat16)
        values = values[values >= float(top.view(torch.bfloat16)) * low]
        values = torch.nn.functional.pad(values, (0, -len(values) % 30)).view(-1, 30)
        ends = top.view(torch.bfloat16) * torch.tensor([1.0, low], dtype=torch.bfloat16)
        groups.append(torch.cat([values, ends.expand(len(values), 2)], 1))
    return torch.cat(groups)


@pytest.mark.parametrize("maths", MATHS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("low, symmetric", [(-1.0, True), (-1.0, False), (-0.5, False), (-0.3, False), (0.0, False)])
def test_every_quotient_of_two_significands_gives_the_code_of_the_reference(
    low: float, symmetric: bool, bits: int, maths: Maths
) -> None:
    weight, scheme = every_quotient(low), Scheme(bits, 32, symmetric)
    assert len(weight) > 3_000
    assert same(fused(raw(weight), 32, scheme, maths), reference(raw(weight), 32, "BF16", scheme, maths))


@pytest.mark.parametrize("maths", MATHS)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("exponent", [-130, -100, -65, -63, 62, 66, 100, 115])
def test_scales_whose_inverse_is_not_exact_enough_are_divided_by(exponent: int, symmetric: bool, maths: Maths) -> None:
    weight = (awkward(torch.bfloat16).float() * 2.0**exponent).bfloat16()
    weight = torch.where(weight.isfinite(), weight, 0).contiguous()
    scheme = Scheme(4, 32, symmetric)
    assert same(fused(raw(weight), 384, scheme, maths), reference(raw(weight), 384, "BF16", scheme, maths))


@pytest.mark.parametrize("rows", [1, 3, 8, 33])
@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_of_any_number_of_rows_are_packed_alike(rows: int, bits: int) -> None:
    weight, scheme = awkward(torch.bfloat16, rows=40)[:rows], Scheme(bits, 32, symmetric=False)
    assert same(fused(raw(weight), 384, scheme, "fp32"), reference(raw(weight), 384, "BF16", scheme, "fp32"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("symmetric", [True, False])
def test_both_refuse_what_is_not_finite(value: float, symmetric: bool) -> None:
    weight = torch.ones(4, 64, dtype=torch.bfloat16)
    weight[2, 17] = value
    for kernel in (fused, lambda data, *rest: reference(data, 64, "BF16", *rest[1:])):
        with pytest.raises(NotFinite):
            kernel(raw(weight), 64, Scheme(4, 32, symmetric), "fp32")


@pytest.mark.parametrize("symmetric", [True, False])
def test_both_refuse_a_range_that_overflows_or_neither(symmetric: bool) -> None:
    weight = torch.zeros(2, 64, dtype=torch.bfloat16)
    weight[0, 0], weight[0, 1] = 3e38, -3e38
    outcomes = []
    for kernel in (fused, lambda data, columns, *rest: reference(data, columns, "BF16", *rest)):
        try:
            outcomes.append(kernel(raw(weight), 64, Scheme(4, 32, symmetric), "fp32").packed.tobytes())
        except NotFinite:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]


def test_rows_that_end_inside_a_word_go_to_the_reference() -> None:
    weight = awkward(torch.bfloat16)[:, :33].contiguous()
    packed = pack_block(raw(weight), 33, "BF16", Scheme(4, None), "fp32")
    assert packed.packed.nbytes == len(weight) * 5 * 4
    assert same(packed, reference(raw(weight), 33, "BF16", Scheme(4, None), "fp32"))


class NoCacheFolder:
    """What numba does where it can keep its compiled code nowhere, as a finder of modules."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "surgery.kernels":
            raise RuntimeError("cannot cache function 'pack_symmetric': no locator available")


def test_where_numba_finds_no_folder_torch_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import surgery

    monkeypatch.delitem(sys.modules, "surgery.kernels", raising=False)
    monkeypatch.delattr(surgery, "kernels", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NoCacheFolder, *sys.meta_path])
    kernels.cache_clear()
    try:
        assert kernels() is None
    finally:
        kernels.cache_clear()  # what follows in this process has its kernels
