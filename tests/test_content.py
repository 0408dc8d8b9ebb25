"""Contents against the base: exports by llm-compressor are recognised to the bit, and each way to be wrong by its name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from building import LLAMA, LLAMA_LINEAR, found, scheme, write_json
from compressed_tensors.compressors import pack_to_int32, unpack_from_int32
from safetensors.torch import load_file, save_file

from verify import Report, verify
from verify.registry import Level

State = dict[str, torch.Tensor]
LONE = "model.safetensors"
UP, GATE = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.gate_proj"
DOWN = "model.layers.1.mlp.down_proj"
QWEN = "model.language_model.layers."
FULL: Level = "full"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense Llama of random BF16 weights, in one file without index."""
    folder = tmp_path_factory.mktemp("llama")
    generator = torch.Generator().manual_seed(11)
    state = {"lm_head.weight": torch.randn(64, 128, generator=generator) * 0.1}
    state["model.embed_tokens.weight"] = torch.randn(64, 128, generator=generator)
    state["model.norm.weight"] = torch.ones(128)
    for layer in range(2):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            state[f"model.layers.{layer}.{norm}.weight"] = torch.rand(128, generator=generator)
        for name, shape in LLAMA_LINEAR:
            state[f"model.layers.{layer}.{name}.weight"] = torch.randn(shape, generator=generator) * 0.05
    save(folder, {name: tensor.to(torch.bfloat16) for name, tensor in state.items()})
    write_json(folder / "config.json", LLAMA)
    write_json(folder / "generation_config.json", {"eos_token_id": 2})
    return folder


def export(base: Path, out: Path, bits: int, size: int | None, *, symmetric: bool = True, ignore: list[str]) -> Path:
    """`base` as llm-compressor quantizes it on a CPU, every Linear in the same scheme."""
    from compressed_tensors.quantization import QuantizationScheme
    from llmcompressor import model_free_ptq

    group = scheme(bits, size, symmetric=symmetric)
    args = QuantizationScheme(targets=["Linear"], weights=group["weights"])
    model_free_ptq(str(base), str(out), scheme=args, ignore=ignore, device="cpu", max_workers=1)
    return out


@pytest.fixture(scope="module")
def packed4(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(llama, tmp_path_factory.mktemp("w4") / "out", 4, 32, ignore=IGNORED)


@pytest.fixture(scope="module")
def packed4_asymmetric(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(llama, tmp_path_factory.mktemp("w4a") / "out", 4, 32, symmetric=False, ignore=IGNORED)


IGNORED = ["lm_head", "re:.*embed_tokens", "re:.*norm"]
BODY_ONLY = ["lm_head", "re:.*embed_tokens", "re:.*norm", "re:.*mtp.*", "re:.*visual.*", "re:.*linear_attn.*"]
BODY_ONLY += ["re:.*self_attn.*", "re:.*mlp.gate$", "re:.*shared_expert.*"]


def save(folder: Path, state: State) -> None:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / LONE, metadata={"format": "pt"})


def changed(source: Path, folder: Path, change: Callable[[State], object]) -> Path:
    """A copy of `source`, its weights changed in place by `change`."""
    shutil.copytree(source, folder)
    state = load_file(folder / LONE)
    change(state)
    save(folder, state)
    return folder


def judged(folder: Path, base: Path | None, level: Level = FULL) -> Report:
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


def test_fused_experts_are_followed_into_the_base(tmp_path: Path, qwen_moe_base: Path) -> None:
    """llm-compressor takes the fused experts apart, those of the draft head that it leaves dense, too."""
    folder = export(qwen_moe_base, tmp_path / "out", 4, 128, ignore=BODY_ONLY)
    report = judged(folder, qwen_moe_base)
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


def unpacked(state: State, module: str) -> torch.Tensor:
    rows, columns = state[f"{module}.weight_shape"].tolist()
    return unpack_from_int32(state[f"{module}.weight_packed"], 4, torch.Size([rows, columns]))


def swap(state: State, one: str, other: str) -> None:
    for part in ("weight_packed", "weight_scale"):
        left, right = f"{one}.{part}", f"{other}.{part}"
        state[left], state[right] = state[right], state[left]


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
    assert found(report) == ["N04"]
    causes = {finding.place: finding.found for finding in report.findings}
    assert causes[place].startswith(cause)


def test_zero_points_off_by_one(tmp_path: Path, packed4_asymmetric: Path, llama: Path) -> None:
    def damage(state: State) -> None:
        name = f"{UP}.weight_zero_point"
        zeros = unpack_from_int32(state[name], 4, torch.Size([256, 4]), packed_dim=0)
        state[name] = pack_to_int32((zeros + 1).clamp(-8, 7).to(torch.int8), 4, packed_dim=0)

    report = judged(changed(packed4_asymmetric, tmp_path / "out", damage), llama)
    (finding,) = report.findings
    assert (finding.rule, finding.place) == ("N04", UP)
    assert finding.found.startswith("has its zero points or values off by a constant")


def test_permuted_experts(tmp_path: Path, qwen_moe_base: Path) -> None:
    folder = export(qwen_moe_base, tmp_path / "out", 4, 128, ignore=BODY_ONLY)
    one, other = f"{QWEN}1.mlp.experts.2.down_proj", f"{QWEN}1.mlp.experts.6.down_proj"
    shard = next(path for path in sorted(folder.glob("*.safetensors")) if f"{one}.weight_packed" in load_file(path))
    state = load_file(shard)
    swap(state, one, other)
    save_file(state, shard, metadata={"format": "pt"})
    places = {f.place: f.found.partition(" (")[0] for f in judged(folder, qwen_moe_base).findings if f.rule == "N04"}
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


def test_many_modules_with_one_cause_are_one_finding(tmp_path: Path, packed4: Path, llama: Path) -> None:
    def swap_all(state: State) -> None:
        for layer in range(2):
            swap(state, f"model.layers.{layer}.mlp.up_proj", f"model.layers.{layer}.mlp.gate_proj")

    report = judged(changed(packed4, tmp_path / "out", swap_all), llama)
    assert sorted((finding.place, finding.count) for finding in report.findings) == [
        ("model.layers.{0-1}.mlp.gate_proj", 2),
        ("model.layers.{0-1}.mlp.up_proj", 2),
    ]


def put(name: str, index: Any, value: float) -> Callable[[State], None]:
    def change(state: State) -> None:
        state[name][index] = value

    return change


NORM = "model.layers.0.input_layernorm.weight"
WITHOUT_BASE: list[tuple[Callable[[State], object], str, str, str]] = [
    (put(f"{UP}.weight_scale", (0, 0), float("nan")), "N01", f"{UP}.weight_scale", "NaN"),
    (put(f"{UP}.weight_scale", (3, 1), float("inf")), "N01", f"{UP}.weight_scale", "infinity"),
    (put(f"{UP}.weight_scale", (255, 3), 0.0), "N01", f"{UP}.weight_scale", "0"),
    (put(f"{UP}.weight_scale", (9, 0), -1.0), "N01", f"{UP}.weight_scale", "negative"),
    (put(NORM, 5, float("nan")), "N02", NORM, "NaN"),
    (put(f"{UP}.weight_packed", slice(None), 0), "N03", UP, "every weight is the same"),
    (put(f"{UP}.weight_shape", 0, 255), "T06", f"{UP}.weight_shape", "holds [255, 128], the weight is [256, 128]"),
]


@pytest.mark.parametrize("damage, rule, place, words", WITHOUT_BASE)
def test_contents_that_no_base_is_needed_for(
    tmp_path: Path, packed4: Path, damage: Callable[[State], object], rule: str, place: str, words: str
) -> None:
    folder = changed(packed4, tmp_path / "out", damage)
    assert verify(folder, only=["N", "T"]).findings == ()
    report = judged(folder, None)
    assert [(finding.rule, finding.place) for finding in report.findings] == [(rule, place)]
    assert words in report.findings[0].found
    assert judged(packed4, None).findings == ()


def test_a_scale_that_is_no_number_is_reported_once(tmp_path: Path, packed4: Path, llama: Path) -> None:
    folder = changed(packed4, tmp_path / "out", put(f"{UP}.weight_scale", (0, 0), float("nan")))
    assert found(judged(folder, llama)) == ["N01"]


def test_identical_experts(tmp_path: Path, qwen_moe_base: Path) -> None:
    folder = export(qwen_moe_base, tmp_path / "out", 4, 128, ignore=BODY_ONLY)
    one, other = f"{QWEN}1.mlp.experts.2.down_proj", f"{QWEN}1.mlp.experts.6.down_proj"
    shard = next(path for path in sorted(folder.glob("*.safetensors")) if f"{one}.weight_packed" in load_file(path))
    state = load_file(shard)
    state[f"{other}.weight_packed"] = state[f"{one}.weight_packed"].clone()
    save_file(state, shard, metadata={"format": "pt"})
    assert [(f.rule, f.place) for f in judged(folder, None).findings] == [("N03", other)]


def test_dense_tensors_that_differ_from_the_base(tmp_path: Path, packed4: Path, llama: Path) -> None:
    def round_norms(state: State) -> None:
        for layer in range(2):
            name = f"model.layers.{layer}.input_layernorm.weight"
            state[name] = (1 + state[name]) - 1

    report = judged(changed(packed4, tmp_path / "out", round_norms), llama)
    (finding,) = report.findings
    assert (finding.rule, finding.place) == ("N06", "model.layers.{0-1}.input_layernorm.weight")
    assert finding.found == "differs from the base by rounding"
    other = judged(changed(packed4, tmp_path / "other", put(NORM, 5, 9.0)), llama)
    assert [(f.rule, f.found) for f in other.findings] == [("N06", "differs from the base beyond rounding")]


def test_bits_behind_the_last_column(tmp_path: Path) -> None:
    """33 columns of 4 bits are 4 words and a nibble; one scale a row."""
    module = "model.layers.0.mlp.up_proj"
    codes = torch.zeros(16, 33, dtype=torch.int8)
    codes[:, ::2] = 3
    state = {
        f"{module}.weight_packed": pack_to_int32(codes, 4),
        f"{module}.weight_scale": torch.ones(16, 1, dtype=torch.bfloat16),
        f"{module}.weight_shape": torch.tensor([16, 33]),
    }
    config = {"model_type": "unheard_of", "quantization_config": {"config_groups": {"g": scheme(4, None)}}}
    base = tmp_path / "base"
    base.mkdir()
    save_file({f"{module}.weight": torch.ones(16, 33, dtype=torch.bfloat16)}, base / LONE)
    for name in ("clean", "dirty"):
        (tmp_path / name).mkdir()
        if name == "dirty":
            state[f"{module}.weight_packed"][2, 4] |= 1 << 20
        save(tmp_path / name, state)
        write_json(tmp_path / name / "config.json", config)
    only = ["N08"]
    assert verify(tmp_path / "clean", base=base, level="full", only=only).findings == ()
    (finding,) = verify(tmp_path / "dirty", base=base, level="full", only=only).findings
    assert (finding.rule, finding.severity) == ("N08", "warning")


def test_sampling_reads_a_part_and_the_same_one_each_time(tmp_path: Path, packed4: Path, llama: Path) -> None:
    reports = [verify(packed4, base=llama, level="sample", only=["N"]) for _ in range(2)]
    assert reports[0] == reports[1]


def test_memory_is_bounded_whatever_the_tensor(tmp_path: Path) -> None:
    """300 MB are compared in a few megabytes."""
    import tracemalloc

    from demo.sparse import write_sparse

    base, folder = tmp_path / "base", tmp_path / "out"
    for out in (base, folder):
        out.mkdir()
        write_sparse(out / LONE, {"lm_head.weight": ("BF16", (75_000, 2048))})
    tracemalloc.start()
    report = verify(folder, base=base, level="full", only=["N"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.facts == ("1 of 1 dense tensors compared: equal to the base, bit for bit",)
    assert peak < 64e6
