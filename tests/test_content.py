"""What is in the tensors: finite, distinct, and where there is a base, equal to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from building import found, scheme, write_json
from compressed_tensors.compressors import pack_to_int32
from exporting import LONE, QWEN, UP, State, changed, experts_changed, save
from safetensors.torch import save_file

from verify import Report, verify
from verify.registry import Level


def judged(folder: Path, base: Path | None, level: Level = "full") -> Report:
    return verify(folder, base=base, level=level, only=["N", "T06"])


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


def test_identical_experts(tmp_path: Path, packed_moe: Path) -> None:
    one, other = (f"{QWEN}1.mlp.experts.{expert}.down_proj.weight_packed" for expert in (2, 6))
    folder = experts_changed(packed_moe, tmp_path / "out", one, lambda state: state.update({other: state[one].clone()}))
    assert [(f.rule, f.place) for f in judged(folder, None).findings] == [("N03", other.removesuffix(".weight_packed"))]


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
