"""Packed modules: parts, dtypes and shapes against the group that the config puts them in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from building import (
    LLAMA,
    Entries,
    entries_of,
    found,
    int64s,
    is_layer_linear,
    llama_entries,
    pack,
    packed,
    packed_llama,
    quantization,
    scheme,
    without,
    write_checkpoint,
)

from verify import Report, verify

UP = "model.layers.0.mlp.up_proj"
Q = "model.layers.0.self_attn.q_proj"
MOE = "model.language_model.layers.0.mlp.experts."


def judged(folder: Path, entries: Entries, *, config: dict[str, Any] | None = None, **options: Any) -> Report:
    config = {"quantization_config": quantization("lm_head")} | (config or {})
    write_checkpoint(folder, entries, LLAMA | config)
    return verify(folder, only=["F", "I", "T"], **options)


def sound() -> Entries:
    return pack(llama_entries(), is_layer_linear)


@pytest.mark.parametrize("bits, size", [(4, 32), (4, 128), (8, 32), (8, None), (4, None)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_sound_schemes_are_silent(tmp_path: Path, bits: int, size: int | None, symmetric: bool) -> None:
    entries: Entries = {}
    for name, entry in llama_entries().items():
        module, shape = name.removesuffix(".weight"), entry[1]
        linear = is_layer_linear(module)
        parts = packed(module, shape[0], shape[1], bits, size, symmetric=symmetric) if linear else {name: entry}
        entries |= parts
    groups = quantization("lm_head", group_0=scheme(bits, size, symmetric=symmetric))
    assert judged(tmp_path, entries, config={"quantization_config": groups}).findings == ()


def replaced(**parts: tuple[str, tuple[int, ...], bytes | None] | None) -> Callable[[Entries], Entries]:
    """Replace parts of `UP`; None removes one."""

    def change(entries: Entries) -> Entries:
        changed = entries | {f"{UP}.{part}": entry for part, entry in parts.items() if entry}
        return without(changed, *(f"{UP}.{part}" for part, entry in parts.items() if entry is None))

    return change


FAULTS: list[tuple[str, Callable[[Entries], Entries], str]] = [
    ("T01", replaced(weight_scale=None), f"{UP}.weight_scale"),
    ("T01", replaced(weight_shape=None), f"{UP}.weight_shape"),
    ("T01", replaced(weight_packed=None), f"{UP}.weight_packed"),
    ("T02", replaced(weight=("BF16", (256, 128), None)), UP),
    ("T03", replaced(weight_packed=("F32", (256, 16), None)), f"{UP}.weight_packed"),
    ("T03", replaced(weight_scale=("I8", (256, 4), None)), f"{UP}.weight_scale"),
    ("T03", replaced(weight_shape=("I64", (1,), None)), f"{UP}.weight_shape"),
    ("T04", replaced(weight_packed=("I32", (256, 8), None)), f"{UP}.weight_packed"),
    ("T04", replaced(weight_packed=("I32", (260, 16), None)), f"{UP}.weight_packed"),
    ("T05", replaced(weight_scale=("BF16", (256, 1), None)), f"{UP}.weight_scale"),
    ("T05", replaced(weight_scale=("BF16", (256, 2), None)), f"{UP}.weight_scale"),
    ("T09", replaced(weight_zero_point=("I32", (32, 4), None)), f"{UP}.weight_zero_point"),
]


@pytest.mark.parametrize("rule, change, place", FAULTS)
def test_each_fault_is_found_by_one_rule(
    tmp_path: Path, rule: str, change: Callable[[Entries], Entries], place: str
) -> None:
    report = judged(tmp_path, change(sound()))
    assert [(finding.rule, finding.place, finding.severity) for finding in report.findings] == [(rule, place, "error")]


def test_int32_shape_is_a_warning(tmp_path: Path) -> None:
    (finding,) = judged(tmp_path, replaced(weight_shape=("I32", (2,), None))(sound())).findings
    assert (finding.rule, finding.severity) == ("T03", "warning")


def test_parts_in_a_lost_shard_are_not_missing(tmp_path: Path) -> None:
    judged(tmp_path, sound())
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert found(verify(tmp_path, only=["F", "I", "T"])) == ["F04"]


def test_eight_bits_under_a_four_bit_group_are_named(tmp_path: Path) -> None:
    (finding,) = judged(tmp_path, sound() | packed(UP, 256, 128, bits=8)).findings
    assert finding.rule == "T04"
    assert finding.found == "shape [256, 32], expected [256, 16] for 4 bits of group_0; packed with 8 bits"


def test_scales_are_judged_without_family_and_base(tmp_path: Path) -> None:
    entries = replaced(weight_scale=("BF16", (256, 1), None))(sound())
    report = judged(tmp_path, entries, config={"model_type": "unheard_of"})
    assert [(finding.rule, finding.place) for finding in report.findings] == [("T05", f"{UP}.weight_scale")]


def test_the_more_specific_group_counts(tmp_path: Path) -> None:
    """compressed-tensors: an exact name before a regular expression, that before `Linear`, whatever the order."""
    entries = sound() | packed(UP, 256, 128, bits=8) | packed(Q, 128, 128, 8, None)
    groups = {
        "group_0": scheme(),
        "group_1": scheme(8) | {"targets": ["re:.*up_proj$"]},
        "group_2": scheme(8, None) | {"targets": [Q]},
    }
    others = {"model.layers.1.mlp.up_proj": packed("model.layers.1.mlp.up_proj", 256, 128, 8)}
    entries |= others["model.layers.1.mlp.up_proj"]
    report = judged(tmp_path, entries, config={"quantization_config": quantization("lm_head", **groups)})
    assert report.findings == ()


def test_presets_are_understood(tmp_path: Path) -> None:
    groups = quantization("lm_head") | {"config_groups": {"W4A16": ["Linear"]}}
    entries = pack(llama_entries(), is_layer_linear, 4, 128)
    assert judged(tmp_path / "right", entries, config={"quantization_config": groups}).findings == ()
    assert found(judged(tmp_path / "wrong", sound(), config={"quantization_config": groups})) == ["T05"]


def test_zero_point_missing_or_misshapen(tmp_path: Path) -> None:
    groups = {"quantization_config": quantization("lm_head", group_0=scheme(symmetric=False))}
    assert found(judged(tmp_path / "without", sound(), config=groups)) == ["T09"]
    entries: Entries = {}
    for name, entry in llama_entries().items():
        module = name.removesuffix(".weight")
        parts = packed(module, *entry[1], symmetric=False) if is_layer_linear(module) else {name: entry}
        entries |= parts
    entries[f"{UP}.weight_zero_point"] = ("I32", (256, 4), None)
    (finding,) = judged(tmp_path / "misshapen", entries, config=groups).findings
    assert (finding.rule, finding.found) == ("T09", "shape [256, 4], expected [32, 4]")


def test_columns_that_do_not_divide_by_the_group(tmp_path: Path) -> None:
    entries = pack(llama_entries(), is_layer_linear, 4, 32)
    for name in [name for name in entries if name.endswith("_scale")]:
        rows, groups = entries[name][1]
        entries[name] = ("BF16", (rows, -(-groups * 32 // 96)), None)
    config = {"quantization_config": quantization("lm_head", group_0=scheme(4, 96))}
    report = judged(tmp_path, entries, config=config)
    assert found(report, "error") == ["T07"]


def test_ranks_that_cut_groups(tmp_path: Path) -> None:
    """down_proj has 256 columns, o_proj 128: with groups of 32, four ranks are fine, sixteen are not."""
    assert judged(tmp_path, sound(), tp=4).findings == ()
    places = [(f.rule, f.place) for f in verify(tmp_path, only=["T"], tp=16).findings]
    assert {rule for rule, _ in places} == {"T07"}
    assert all("o_proj" in place or "down_proj" in place for _, place in places)


def test_tiles_matter_to_old_vllm_only(tmp_path: Path) -> None:
    entries = sound() | packed(UP, 224, 128)
    config = {"model_type": "unheard_of"}
    assert judged(tmp_path, entries, config=config).findings == ()
    assert verify(tmp_path, only=["T"], engines=["vllm@0.24"]).findings == ()
    assert found(verify(tmp_path, only=["T"], engines=["vllm@0.23.0"])) == ["T08"]


def test_hidden_size_that_the_kernel_for_experts_cannot_take(tmp_path: Path) -> None:
    def experts(hidden: int) -> Entries:
        shapes = {"gate_proj": (64, hidden), "up_proj": (64, hidden), "down_proj": (hidden, 64)}
        return {k: v for part, shape in shapes.items() for k, v in packed(f"{MOE}0.{part}", *shape).items()}

    config = {"model_type": "unheard_of"}
    assert judged(tmp_path / "128", experts(128), config=config).findings == ()
    report = judged(tmp_path / "96", experts(96), config=config)
    assert [(finding.rule, finding.severity) for finding in report.findings] == [("T08", "warning")]


def test_packed_vision_and_packed_embedding(tmp_path: Path, qwen_moe_base: Path) -> None:
    fine = entries_of(qwen_moe_base)
    vision, embedding = "model.visual.blocks.0.attn.qkv", "model.language_model.embed_tokens"
    config = {**load(qwen_moe_base), "quantization_config": quantization("re:.*mtp.*")}
    for rule, module in (("T10", vision), ("T11", embedding)):
        entries = pack(fine, module.__eq__)
        write_checkpoint(tmp_path / rule, entries, config)
        report = verify(tmp_path / rule, only=["T"])
        assert [(finding.rule, finding.place) for finding in report.findings] == [(rule, module)]
    assert found(verify(tmp_path / "T10", only=["T"], engines=["vllm", "transformers"])) == []


def test_the_most_ranks_are_a_fact_and_the_ranks_asked_for_are_judged(tmp_path: Path) -> None:
    """o_proj has 128 columns in groups of 32: four ranks; down_proj has 256."""
    folder = packed_llama(tmp_path)
    (fact,) = (fact for fact in verify(folder).facts if "tensor parallelism" in fact)
    assert "up to 4 ranks" in fact
    assert "o_proj" in fact
    assert found(verify(folder, tp=4)) == []
    assert found(verify(folder, tp=8)) == ["T07"]


def load(folder: Path) -> dict[str, Any]:
    import json

    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def test_shape_content_is_not_read_from_headers(tmp_path: Path) -> None:
    entries = replaced(weight_shape=("I64", (2,), int64s(1, 1)))(sound())
    assert judged(tmp_path, entries).findings == ()
