"""Packed weights against the base: exports are recognised to the bit, and each way to be wrong by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from building import LLAMA, found, write_json
from compressed_tensors.compressors import pack_to_int32, unpack_from_int32
from exporting import (
    DOWN,
    GATE,
    IGNORED,
    LONE,
    QWEN,
    UP,
    State,
    changed,
    experts_changed,
    export,
    swap,
    unpacked,
)
from safetensors.torch import load_file
from test_rtn import upstream

from surgery.scheme import Scheme
from verify import Report, compiled, verify
from verify.registry import Level


@pytest.fixture(autouse=True, params=["reference", "kernels"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All is judged twice: as small checkpoints are, and as large ones."""
    way = str(request.param)
    if way == "kernels":
        pytest.importorskip("numba")
        monkeypatch.setattr(compiled, "WORTH", 0)
    return way


@pytest.fixture(scope="module")
def packed4_asymmetric(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(llama, tmp_path_factory.mktemp("w4a") / "out", 4, 32, symmetric=False, ignore=IGNORED)


def judged(folder: Path, base: Path | None, level: Level = "full") -> Report:
    return verify(folder, base=base, level=level, only=["N", "T06"])


@pytest.mark.parametrize("level", ["sample", "full"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits, size", [(4, 32), (8, 128), (4, None)])
def test_exports_by_llm_compressor_are_exact(
    tmp_path: Path, llama: Path, bits: int, size: int | None, symmetric: bool, level: Level
) -> None:
    folder = export(llama, tmp_path / "out", bits, size, symmetric=symmetric, ignore=IGNORED)
    report = judged(folder, llama, level)
    assert report.findings == ()
    assert any("exactly round-to-nearest, maths eager" in fact for fact in report.facts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_dtypes_are_exact(tmp_path: Path, llama: Path, dtype: torch.dtype) -> None:
    base = changed(llama, tmp_path / "base", lambda state: state.update({k: v.to(dtype) for k, v in state.items()}))
    report = judged(export(base, tmp_path / "out", 4, 32, ignore=IGNORED), base)
    assert report.findings == ()
    assert any("exactly" in fact for fact in report.facts)


def test_fused_experts_are_followed_into_the_base(packed_moe: Path, qwen_moe_base: Path) -> None:
    """llm-compressor takes the fused experts apart, those of the draft head that it leaves dense, too."""
    report = judged(packed_moe, qwen_moe_base)
    assert report.findings == ()
    assert "96 of 96 packed modules computed again: exactly round-to-nearest, maths eager" in report.facts
    assert any("dense tensors compared: equal" in fact for fact in report.facts)


def quantized_in_fp32(state: State, base: State) -> None:
    """As the Triton kernel computes: the quotient is not rounded to BF16 before it is rounded to an integer."""
    for name in [name for name in state if name.endswith("_packed")]:
        module = name.removesuffix(".weight_packed")
        weight, scale = base[f"{module}.weight"].float(), state[f"{module}.weight_scale"].float()
        quotient = weight.reshape(len(weight), -1, 32) / scale.unsqueeze(-1)
        codes = quotient.clamp(-8, 7).round().to(torch.int8).reshape(weight.shape)
        state[name] = pack_to_int32(codes, 4)


def test_the_other_maths_is_recognised(tmp_path: Path, packed4: Path, llama: Path) -> None:
    base = load_file(llama / LONE)
    report = judged(changed(packed4, tmp_path / "out", lambda state: quantized_in_fp32(state, base)), llama)
    assert report.findings == ()
    assert "14 of 14 packed modules computed again: exactly round-to-nearest, maths fp32" in report.facts


def compensated(state: State) -> None:
    """As calibration does: a fifth of all codes moved by one."""
    generator = torch.Generator().manual_seed(5)
    for name in [name for name in state if name.endswith("_packed")]:
        codes = unpacked(state, name.removesuffix(".weight_packed"))
        moves = torch.randint(-1, 2, codes.shape, generator=generator)
        moves *= torch.rand(codes.shape, generator=generator) < 0.2
        state[name] = pack_to_int32((codes + moves).clamp(-8, 7).to(torch.int8), 4)


def test_calibrated_modules_are_near_not_exact(tmp_path: Path, packed4: Path, llama: Path) -> None:
    report = judged(changed(packed4, tmp_path / "out", compensated), llama)
    assert report.findings == ()
    assert any("not round-to-nearest, near the base" in fact for fact in report.facts)


def reverse_words(state: State) -> None:
    codes = unpacked(state, UP)
    state[f"{UP}.weight_packed"] = pack_to_int32(codes.reshape(-1, 8).flip(1).reshape(codes.shape), 4)


def swap_nibbles(state: State) -> None:
    codes = unpacked(state, UP)
    state[f"{UP}.weight_packed"] = pack_to_int32(codes.reshape(-1, 2).flip(1).reshape(codes.shape), 4)


def forget_offset(state: State) -> None:
    """Each value stored as it is, not plus 8."""
    codes = unpacked(state, UP)
    state[f"{UP}.weight_packed"] = pack_to_int32(((codes + 16) % 16 - 8).to(torch.int8), 4)


def shift_scales(state: State) -> None:
    state[f"{UP}.weight_scale"] = state[f"{UP}.weight_scale"].roll(1, 1)


def double_scales(state: State) -> None:
    state[f"{UP}.weight_scale"] *= 2


def randomise(state: State) -> None:
    codes = torch.randint(-8, 8, (256, 128), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
    state[f"{UP}.weight_packed"] = pack_to_int32(codes, 4)


CAUSES: list[tuple[Callable[[State], object], str, str]] = [
    (lambda state: swap(state, UP, GATE), "model.layers.0.mlp.up_proj", "is gate_proj of the base"),
    (lambda state: swap(state, DOWN, "model.layers.0.mlp.down_proj"), DOWN, "is that of layer 0 of the base"),
    (reverse_words, UP, "holds the values of each word in reverse order"),
    (swap_nibbles, UP, "holds the nibbles of each byte swapped"),
    (forget_offset, UP, "holds two's complement instead of offset values"),
    (shift_scales, UP, "has its scales shifted by one group"),
    (double_scales, UP, "has its scales off by a constant factor"),
    (randomise, UP, "has nothing to do with the base's weight"),
]


@pytest.mark.parametrize("damage, place, cause", CAUSES)
def test_a_wrong_module_is_found_with_its_cause(
    tmp_path: Path, packed4: Path, llama: Path, damage: Callable[[State], object], place: str, cause: str
) -> None:
    report = judged(changed(packed4, tmp_path / "out", damage), llama)
    assert found(report) == ["N05" if " of the base" in cause and cause.startswith("is ") else "N04"]
    causes = {finding.place: finding.found for finding in report.findings}
    assert causes[place].startswith(cause)


def test_a_square_weight_stored_transposed(tmp_path: Path, packed4: Path, llama: Path) -> None:
    module = "model.layers.1.self_attn.q_proj"
    weight = load_file(llama / LONE)[f"{module}.weight"]
    assert weight.shape == (128, 128)

    def transpose(state: State) -> None:
        turned = upstream(weight.t().contiguous(), Scheme(4, 32))
        state[f"{module}.weight_packed"], state[f"{module}.weight_scale"] = turned["packed"], turned["scale"]

    (finding,) = judged(changed(packed4, tmp_path / "out", transpose), llama).findings
    assert (finding.rule, finding.place) == ("N05", module)
    assert finding.found.startswith("is the base's weight transposed")


def test_zero_points_off_by_one(tmp_path: Path, packed4_asymmetric: Path, llama: Path) -> None:
    def damage(state: State) -> None:
        name = f"{UP}.weight_zero_point"
        zeros = unpack_from_int32(state[name], 4, torch.Size([256, 4]), packed_dim=0)
        state[name] = pack_to_int32((zeros + 1).clamp(-8, 7).to(torch.int8), 4, packed_dim=0)

    report = judged(changed(packed4_asymmetric, tmp_path / "out", damage), llama)
    (finding,) = report.findings
    assert (finding.rule, finding.place) == ("N04", UP)
    assert finding.found.startswith("has its zero points or values off by a constant")


def test_permuted_experts(tmp_path: Path, packed_moe: Path, qwen_moe_base: Path) -> None:
    one, other = f"{QWEN}1.mlp.experts.2.down_proj", f"{QWEN}1.mlp.experts.6.down_proj"
    holder = f"{one}.weight_packed"
    folder = experts_changed(packed_moe, tmp_path / "out", holder, lambda state: swap(state, one, other))
    places = {f.place: f.found.partition(" (")[0] for f in judged(folder, qwen_moe_base).findings if f.rule == "N05"}
    assert places == {one: "is expert 6 of the base", other: "is expert 2 of the base"}


def test_a_flipped_bit_in_a_large_module_is_seen(tmp_path: Path, llama: Path) -> None:
    """Within any bound of error, but all other rows are exact."""
    tall = torch.randn(4096, 128, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    base = changed(llama, tmp_path / "base", lambda state: state.update({"lm_head.weight": tall}))
    write_json(base / "config.json", LLAMA | {"vocab_size": 4096})
    folder = export(base, tmp_path / "out", 4, 32, ignore=IGNORED[1:])

    def flip(state: State) -> None:
        state["lm_head.weight_packed"][3000, 3] ^= 1

    report = judged(changed(folder, tmp_path / "flipped", flip), base)
    assert [(finding.rule, finding.place) for finding in report.findings] == [("N04", "lm_head")]
    assert report.findings[0].found.startswith("departs in some rows")


def test_bytes_where_words_belong_are_left_to_the_rule_on_dtypes(tmp_path: Path, packed4: Path, llama: Path) -> None:
    def narrow(state: State) -> None:
        state[f"{UP}.weight_packed"] = state[f"{UP}.weight_packed"].to(torch.int8)

    report = verify(changed(packed4, tmp_path / "out", narrow), base=llama, level="full", only=["N", "T"])
    assert found(report) == ["T03"]
    assert any("content of 1 packed modules" in what for what in report.skipped)


def test_many_modules_with_one_cause_are_one_finding(tmp_path: Path, packed4: Path, llama: Path) -> None:
    def swap_all(state: State) -> None:
        for layer in range(2):
            swap(state, f"model.layers.{layer}.mlp.up_proj", f"model.layers.{layer}.mlp.gate_proj")

    report = judged(changed(packed4, tmp_path / "out", swap_all), llama)
    assert sorted((finding.place, finding.count) for finding in report.findings) == [
        ("model.layers.{0-1}.mlp.gate_proj", 2),
        ("model.layers.{0-1}.mlp.up_proj", 2),
    ]
