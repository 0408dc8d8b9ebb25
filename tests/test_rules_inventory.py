"""Tensors missing, besides, misshapen: each cause by one rule, ten thousand of one kind as one finding."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import qwen
from building import (
    LLAMA,
    Entries,
    changed,
    dense_llama,
    edit_json,
    entries_of,
    found,
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

QWEN = "model.language_model.layers."
IGNORE = tuple(
    f"re:.*{name}" for name in ("mtp.*", "visual.*", "linear_attn.*", "mlp.gate$", "shared_expert.*", "self_attn.*")
)
CAUSES = ["F", "I", "T"]


def is_body_expert(module: str) -> bool:
    return ".experts." in module and not module.startswith("mtp.")


@pytest.fixture(scope="module")
def moe(qwen_moe_base: Path) -> Entries:
    """A sound export of the small Qwen MoE: the experts of the body packed, all else as in the base."""
    return pack(entries_of(qwen_moe_base), is_body_expert)


@pytest.fixture(scope="module")
def moe_config(qwen_moe_base: Path) -> dict[str, object]:
    config: dict[str, object] = json.loads((qwen_moe_base / "config.json").read_text())
    return config | {"quantization_config": quantization("lm_head", *IGNORE)}


def judged(folder: Path, entries: Entries, config: dict[str, object], base: Path | None = None) -> Report:
    return verify(write_checkpoint(folder, entries, config), base=base, only=CAUSES)


def test_a_sound_export_is_silent_with_and_without_its_base(
    tmp_path: Path, moe: Entries, moe_config: dict[str, object], qwen_moe_base: Path
) -> None:
    assert judged(tmp_path, moe, moe_config).findings == ()
    assert judged(tmp_path, moe, moe_config, qwen_moe_base).findings == ()


def test_bases_are_sound(qwen_moe_base: Path, qwen_moe_f32_base: Path, smollm2_base: Path) -> None:
    for base in (qwen_moe_base, qwen_moe_f32_base, smollm2_base):
        assert verify(base, base=base, only=[*CAUSES, "X"]).findings == ()


@pytest.mark.parametrize("with_base", [True, False])
def test_missing_tensor(tmp_path: Path, with_base: bool) -> None:
    base = dense_llama(tmp_path / "base") if with_base else None
    folder = write_checkpoint(tmp_path / "out", without(llama_entries(), "model.norm.weight"), LLAMA)
    (finding,) = verify(folder, base=base).findings
    assert (finding.rule, finding.place, finding.severity) == ("I01", "model.norm.weight", "error")


def test_alike_tensors_are_one_finding(tmp_path: Path) -> None:
    names = [f"model.layers.{layer}.input_layernorm.weight" for layer in range(2)]
    folder = write_checkpoint(tmp_path, without(llama_entries(), *names), LLAMA)
    (finding,) = verify(folder).findings
    assert (finding.place, finding.count) == ("model.layers.{0-1}.input_layernorm.weight", 2)


def test_what_lies_in_a_lost_shard_or_outside_the_index_is_not_called_missing(tmp_path: Path) -> None:
    folder = dense_llama(tmp_path / "lost")
    (folder / "model-00001-of-00002.safetensors").unlink()
    assert found(verify(folder)) == ["F04"]
    folder = dense_llama(tmp_path / "unlisted")
    second = "model-00002-of-00002.safetensors"
    keep = lambda i: i.update(weight_map={n: f for n, f in i["weight_map"].items() if f != second})  # noqa: E731
    edit_json(folder / "model.safetensors.index.json", keep)
    assert found(verify(folder), "error") == ["F05"]


def test_a_module_with_a_part_too_few_is_not_missing_as_well(tmp_path: Path) -> None:
    folder = packed_llama(tmp_path)
    entries = without(entries_of(folder), "model.layers.0.mlp.up_proj.weight_packed")
    assert found(verify(rewritten(tmp_path / "out", entries, folder))) == ["T01"]


def rewritten(folder: Path, entries: Entries, source: Path) -> Path:
    return write_checkpoint(folder, entries, json.loads((source / "config.json").read_text()))


def test_shape_other_than_the_config_calls_for(tmp_path: Path) -> None:
    entries = llama_entries() | {"lm_head.weight": ("BF16", (96, 128), None)}
    (finding,) = verify(write_checkpoint(tmp_path, entries, LLAMA)).findings
    assert (finding.rule, finding.found) == ("I02", "shape [96, 128], expected [64, 128]")


def test_changed_dtype_is_named(tmp_path: Path) -> None:
    base = dense_llama(tmp_path / "base")
    entries = llama_entries() | {"model.norm.weight": ("F16", (128,), None)}
    (finding,) = verify(write_checkpoint(tmp_path / "out", entries, LLAMA), base=base).findings
    assert (finding.rule, finding.severity) == ("I03", "warning")
    assert finding.found == "stored as F16, expected BF16"


def test_integer_where_a_weight_should_be(tmp_path: Path) -> None:
    entries = llama_entries() | {"model.norm.weight": ("I8", (128,), None)}
    assert found(verify(write_checkpoint(tmp_path, entries, LLAMA))) == ["I03"]


EXPERT = QWEN + "1.mlp.experts.{}.{}.{}"


@pytest.mark.parametrize("with_base", [True, False])
def test_lost_expert_and_lost_projection(
    tmp_path: Path, moe: Entries, moe_config: dict[str, object], qwen_moe_base: Path, with_base: bool
) -> None:
    parts = ("weight_packed", "weight_scale", "weight_shape")
    names = [EXPERT.format(3, part, leaf) for part in ("gate_proj", "up_proj", "down_proj") for leaf in parts]
    names += [EXPERT.format(5, "up_proj", leaf) for leaf in parts]
    report = judged(tmp_path, without(moe, *names), moe_config, qwen_moe_base if with_base else None)
    assert found(report) == ["I04"]
    assert sum(finding.count for finding in report.findings) == 4


def test_expert_beyond_the_count(tmp_path: Path, moe: Entries, moe_config: dict[str, object]) -> None:
    more = packed(QWEN + "1.mlp.experts.8.up_proj", 256, 256)
    assert found(judged(tmp_path, moe | more, moe_config)) == ["I04"]


def test_gaps_show_without_family_and_base(tmp_path: Path, moe: Entries) -> None:
    names = [name for name in moe if name.startswith(QWEN + "0.mlp.experts.2.down_proj.")]
    config: dict[str, object] = {"model_type": "unheard_of", "quantization_config": quantization("lm_head", *IGNORE)}
    report = judged(tmp_path, without(moe, *names), config)
    assert [(finding.rule, finding.place) for finding in report.findings] == [
        ("I04", QWEN + "0.mlp.experts.2.down_proj")
    ]
    assert "which tensors are missing" in report.skipped


def test_experts_both_fused_and_one_by_one(tmp_path: Path, moe: Entries, moe_config: dict[str, object]) -> None:
    fused: Entries = {QWEN + "2.mlp.experts.down_proj": ("BF16", (8, 256, 256), None)}
    (finding,) = judged(tmp_path, moe | fused, moe_config).findings
    assert (finding.rule, finding.place) == ("I05", QWEN + "2.mlp.experts")


def test_some_layers_fused_others_packed(tmp_path: Path, moe_config: dict[str, object], qwen_moe_base: Path) -> None:
    mixed = pack(entries_of(qwen_moe_base), lambda m: is_body_expert(m) and not m.startswith(QWEN + "2."))
    report = judged(tmp_path, mixed, moe_config, qwen_moe_base)
    assert [(f.rule, f.place, f.engines) for f in report.findings] == [
        ("I06", QWEN + "2.mlp.experts", ("sglang", "vllm"))
    ]
    assert verify(tmp_path, base=qwen_moe_base, only=CAUSES, engines=["transformers"]).findings == ()


def test_fused_names_for_packed_experts(tmp_path: Path, moe_config: dict[str, object], qwen_moe_base: Path) -> None:
    entries = entries_of(qwen_moe_base)
    fused = without(entries, QWEN + "0.mlp.experts.down_proj")
    fused[QWEN + "0.mlp.experts.down_proj_packed"] = ("I32", (8, 256, 32), None)
    fused[QWEN + "0.mlp.experts.down_proj_scale"] = ("BF16", (8, 256, 8), None)
    assert found(judged(tmp_path, fused, moe_config)) == ["I07"]


def test_lost_layer_and_surplus_layer(tmp_path: Path) -> None:
    one = write_checkpoint(tmp_path / "one", llama_entries(layers=1), LLAMA)
    (finding,) = verify(one).findings
    assert (finding.rule, finding.place, finding.found) == ("I08", "model.layers.1", "the whole layer is missing")
    three = write_checkpoint(tmp_path / "three", llama_entries(layers=3), LLAMA)
    assert [(f.rule, f.place) for f in verify(three).findings] == [("I08", "model.layers.2")]


def test_layer_of_another_type(tmp_path: Path, moe: Entries, moe_config: dict[str, object]) -> None:
    types = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    config = changed(moe_config, "text_config", "layer_types", value=types)
    report = judged(tmp_path, moe, config)
    assert [(finding.rule, finding.place) for finding in report.findings] == [("I08", QWEN + "0")]
    assert report.findings[0].found == "linear_attn stored where the config calls for self_attn"


def test_lost_vision_tower(tmp_path: Path, moe: Entries, moe_config: dict[str, object]) -> None:
    text_only = {name: entry for name, entry in moe.items() if ".visual." not in name}
    assert found(judged(tmp_path, text_only, moe_config)) == ["I09"]


def test_vision_tower_that_the_config_does_not_declare(
    tmp_path: Path, moe: Entries, moe_config: dict[str, object]
) -> None:
    config = {key: value for key, value in moe_config.items() if key != "vision_config"}
    assert found(judged(tmp_path, moe, config)) == ["I09"]


def test_text_only_class_for_a_vision_model(tmp_path: Path, moe: Entries, moe_config: dict[str, object]) -> None:
    """vLLM 0.24.0 and transformers 5.17 were seen to build the vision-language class all the same."""
    judged(tmp_path, moe, moe_config | {"architectures": ["Qwen3_5MoeForCausalLM"]})
    for engine, expected in (("vllm", ["I09"]), ("sglang", ["I09"]), ("vllm@0.24", []), ("transformers", [])):
        assert found(verify(tmp_path, engines=[engine], only=["I"])) == expected


def test_a_layer_of_fused_experts_among_packed_ones_lacks_nothing(tmp_path: Path) -> None:
    """Seen with transformers 5.17, which loads it; vLLM 0.24.0 skips the packed layers: I06."""
    entries = {**pack(qwen.entries(), qwen.body_experts), **_fused(0)}
    entries = {name: entry for name, entry in entries.items() if not _is_single_expert(name, 0)}
    config = qwen.config(*qwen.SOUND, r"re:.*layers\.0\.mlp\.experts.*")
    write_checkpoint(tmp_path, entries, config)
    assert found(verify(tmp_path, only=["I"])) == ["I06"]
    assert found(verify(tmp_path, only=["I", "C07", "C08"], engines=["transformers"])) == []


def _fused(layer: int) -> Entries:
    return {name: entry for name, entry in qwen.entries().items() if f"{qwen.LAYER}{layer}.mlp.experts." in name}


def _is_single_expert(name: str, layer: int) -> bool:
    return re.match(rf"{re.escape(qwen.LAYER)}{layer}\.mlp\.experts\.\d+\.", name) is not None


def test_lost_head(tmp_path: Path) -> None:
    entries = without(llama_entries(), "lm_head.weight")
    assert found(verify(write_checkpoint(tmp_path / "untied", entries, LLAMA))) == ["I10"]
    assert verify(write_checkpoint(tmp_path / "tied", entries, LLAMA | {"tie_word_embeddings": True})).findings == ()


def test_packed_head_of_a_tied_model(tmp_path: Path) -> None:
    entries = pack(llama_entries(), lambda module: module == "lm_head")
    group = scheme() | {"targets": ["re:.*lm_head"]}
    config = LLAMA | {"tie_word_embeddings": True, "quantization_config": quantization(group_0=group)}
    report = verify(write_checkpoint(tmp_path, entries, config), only=CAUSES)
    assert [(finding.rule, finding.severity) for finding in report.findings] == [("I10", "error")]


@pytest.mark.parametrize(
    "leaf",
    ["weight_g_idx", "input_scale", "rotary_emb.inv_freq", "k_scale", "weight_observer.min_val", "adapter.weight"],
)
def test_leftovers_and_unknown_names(tmp_path: Path, leaf: str) -> None:
    entries = llama_entries() | {f"model.layers.0.self_attn.q_proj.{leaf}": ("F32", (4,), None)}
    report = verify(write_checkpoint(tmp_path, entries, LLAMA), only=["I"])
    assert [(finding.rule, finding.count) for finding in report.findings] == [("I11", 1)]


def test_a_missing_draft_head_is_not_reported_here(
    tmp_path: Path, moe: Entries, moe_config: dict[str, object], qwen_moe_base: Path
) -> None:
    headless = {name: entry for name, entry in moe.items() if not name.startswith("mtp.")}
    assert judged(tmp_path, headless, moe_config, qwen_moe_base).findings == ()


def test_ninety_thousand_tensors_take_seconds(tmp_path: Path, replica: Path) -> None:
    entries = pack(entries_of(replica), is_body_expert, 4, 128)
    assert len(entries) == 93_125
    config = json.loads((replica / "config.json").read_text())
    config["quantization_config"] = quantization("lm_head", *IGNORE, group_0=scheme(4, 128))
    write_sparsely(tmp_path, entries, config)
    started = time.monotonic()
    report = verify(tmp_path, only=CAUSES)
    assert report.findings == ()
    assert time.monotonic() - started < 8  # 2 s on an idle machine


def write_sparsely(folder: Path, entries: Entries, config: dict[str, object]) -> None:
    """As `write_checkpoint`, with holes for data and one shard after the other."""
    from demo.sparse import tensor_bytes, write_sparse

    file = "model-00001-of-00001.safetensors"
    sizes = {name: (dtype, shape) for name, (dtype, shape, _) in entries.items()}
    write_sparse(folder / file, sizes)
    total = sum(tensor_bytes(*one) for one in sizes.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(entries, file)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("value", [10**30, "many", 2.5, True])
def test_a_size_that_no_model_has_is_found_and_one_that_is_not_said_is_not(tmp_path: Path, value: object) -> None:
    folder = dense_llama(tmp_path / "model")
    edit_json(folder / "config.json", lambda config: config.update(vocab_size=value))
    faults = [one for one in verify(folder, only=["I02"]).findings if one.place == "config.json"]
    assert bool(faults) == (value is not True)  # which counts as 1, and then the shapes differ
    edit_json(folder / "config.json", lambda config: config.pop("vocab_size"))
    assert not verify(folder, only=["I02"]).findings
