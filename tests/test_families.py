"""Families: the tensor lists are those of transformers' own models, and of the published checkpoints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import pytest

import checkpoint.families as families_package
from checkpoint.errors import UnreadableCheckpoint
from checkpoint.families import Family, SpecError, family_names, find_family, load_family
from checkpoint.families.expression import parse
from checkpoint.families.values import MOST_TENSORS

Shapes = dict[str, tuple[int, ...]]

# config.json of Qwen/Qwen3.6-35B-A3B, the keys that decide its tensors.
QWEN36_35B: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "text_config": {
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 256,
        "mtp_num_hidden_layers": 1,
        "vocab_size": 248320,
    },
    "vision_config": {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "out_hidden_size": 2048,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
        "in_channels": 3,
    },
}

SMALL_TEXT: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 80,
    "vocab_size": 128,
    "pad_token_id": 0,
}
SMALL_MOE = SMALL_TEXT | {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
SMALL_GDN = SMALL_MOE | {
    "shared_expert_intermediate_size": 56,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 12,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 20,
}
SMALL_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 72,
    "num_heads": 2,
    "out_hidden_size": 48,
    "patch_size": 8,
    "temporal_patch_size": 2,
    "spatial_merge_size": 3,
    "num_position_embeddings": 25,
    "in_channels": 3,
}

CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", SMALL_TEXT),
    ("llama", {k: v for k, v in SMALL_TEXT.items() if k not in {"head_dim", "num_key_value_heads"}}),
    ("llama", SMALL_TEXT | {"attention_bias": True, "mlp_bias": True}),
    ("llama", SMALL_TEXT | {"tie_word_embeddings": True}),
    ("qwen3", SMALL_TEXT),
    ("qwen3", {k: v for k, v in SMALL_TEXT.items() if k != "head_dim"} | {"attention_bias": True}),
    ("qwen3", SMALL_TEXT | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
    ("qwen3", SMALL_TEXT | {"tie_word_embeddings": True}),
    ("qwen3_moe", SMALL_MOE),
    ("qwen3_moe", {k: v for k, v in SMALL_MOE.items() if k != "head_dim"}),
    ("qwen3_moe", SMALL_MOE | {"mlp_only_layers": [1], "attention_bias": True}),
    ("qwen3_moe", SMALL_MOE | {"decoder_sparse_step": 2}),
    ("qwen3_next", SMALL_GDN),
    ("qwen3_next", SMALL_GDN | {"mlp_only_layers": [0], "attention_bias": True, "full_attention_interval": 2}),
    ("qwen3_next", SMALL_GDN | {"layer_types": ["full_attention", "linear_attention"] * 2}),
    ("qwen3_5_moe", {"text_config": SMALL_GDN, "vision_config": SMALL_VISION}),
    ("qwen3_5_moe", {"text_config": SMALL_GDN | {"attention_bias": True}, "vision_config": SMALL_VISION}),
    ("qwen3_5_moe", {"text_config": SMALL_GDN, "vision_config": SMALL_VISION, "tie_word_embeddings": True}),
]
CASE_IDS = [f"{index}-{name}" for index, (name, _) in enumerate(CASES)]


def live_model(name: str, config: dict[str, Any]) -> Any:
    """transformers' own model of `config`, without storage."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    factory = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    with torch.device("meta"):
        return factory.from_config(CONFIG_MAPPING[name](**config))


def live_shapes(model: Any) -> Shapes:
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


def expected_shapes(name: str, config: dict[str, Any], layouts: dict[str, str]) -> Shapes:
    tensors = load_family(name).spec(config).tensors(layouts)
    return {tensor.name: tensor.shape for tensor in tensors.values() if tensor.scope != "mtp"}


def config_without(*keys: str) -> dict[str, Any]:
    text = {k: v for k, v in QWEN36_35B["text_config"].items() if k not in keys}
    return {**QWEN36_35B, "text_config": text}


def with_text(**changes: Any) -> dict[str, Any]:
    return {**QWEN36_35B, "text_config": QWEN36_35B["text_config"] | changes}


@pytest.mark.parametrize(("name", "config"), CASES, ids=CASE_IDS)
def test_spec_has_the_names_and_shapes_of_the_live_transformers_model(name: str, config: dict[str, Any]) -> None:
    family = load_family(name)
    fused = dict.fromkeys(family.layouts, "fused")  # transformers 5 holds experts as 3-D parameters
    assert expected_shapes(name, config, fused) == live_shapes(live_model(name, config))


@pytest.mark.parametrize(("name", "config"), CASES, ids=CASE_IDS)
def test_linear_modules_are_the_nn_linear_of_the_live_model_and_its_routers(name: str, config: dict[str, Any]) -> None:
    import torch

    family, model = load_family(name), live_model(name, config)
    for module_name, module in model.named_modules():
        router = type(module).__name__.endswith("TopKRouter")
        assert family.is_linear(module_name) == (isinstance(module, torch.nn.Linear) or router), module_name


def test_a_config_that_transformers_saved_gives_the_same_spec(tmp_path: Path) -> None:
    from transformers import CONFIG_MAPPING

    for name, config in CASES:
        CONFIG_MAPPING[name](**config).save_pretrained(tmp_path)
        saved = json.loads((tmp_path / "config.json").read_text())
        family = find_family(saved)
        assert family is not None
        assert family.name == name
        assert family.spec(saved).tensors() == family.spec(config).tensors()


def test_unfused_experts_are_the_slices_transformers_loads_them_into() -> None:
    """transformers merges per-expert tensors into the 3-D parameters; the total per expert must be the same."""
    spec = load_family("qwen3_moe").spec(SMALL_MOE)
    fused, split = spec.tensors({"body": "fused"}), spec.tensors({"body": "per_expert"})
    assert len(split) - len(fused) == 4 * (3 * 3 - 2)
    assert sum(prod(t.shape) for t in split.values()) == sum(prod(t.shape) for t in fused.values())
    assert split["model.layers.3.mlp.experts.2.down_proj.weight"].shape == (48, 40)
    assert split["model.layers.3.mlp.experts.2.up_proj.weight"].shape == (40, 48)


def test_qwen36_35b_has_the_published_tensors() -> None:
    """1,045 names and 71,903,645,408 bytes of BF16, as the published index states."""
    tensors = load_family("qwen3_5_moe").spec(QWEN36_35B).tensors()
    scopes = Counter(tensor.scope for tensor in tensors.values())
    assert len(tensors) == 1045
    assert sum(prod(tensor.shape) for tensor in tensors.values()) == 35_951_822_704
    assert scopes == {"top": 3, "body": 690, "vision": 333, "mtp": 19}
    assert tensors["model.language_model.layers.0.mlp.experts.gate_up_proj"].shape == (256, 1024, 2048)
    assert tensors["model.language_model.layers.39.self_attn.q_proj.weight"].shape == (8192, 2048)
    assert tensors["model.visual.merger.linear_fc2.weight"].shape == (2048, 4608)


def test_qwen36_35b_has_every_name_and_shape_of_the_published_inventory() -> None:
    from demo.replica import inventory

    tensors = load_family("qwen3_5_moe").spec(QWEN36_35B).tensors()
    published = {name: tuple(shape) for name, (_, shape) in inventory().items()}
    assert {name: tensor.shape for name, tensor in tensors.items()} == published


def test_a_family_and_its_spec_are_ready_in_fifty_milliseconds_without_heavy_imports() -> None:
    code = f"""
import sys, time
from checkpoint.families import find_family
start = time.process_time()
assert len(find_family({QWEN36_35B!r}).spec({QWEN36_35B!r}).tensors()) == 1045
assert time.process_time() - start < 0.05
assert not {{"torch", "numpy", "transformers", "jsonschema"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_qwen35_35b_has_785_mtp_tensors_and_1811_in_all() -> None:
    tensors = load_family("qwen3_5_moe").spec(QWEN36_35B).tensors({"mtp": "per_expert"})
    assert sum(tensor.scope == "mtp" for tensor in tensors.values()) == 785
    assert len(tensors) == 1811


def test_state_may_be_f32_or_bf16_and_nothing_else_is_restricted() -> None:
    tensors = load_family("qwen3_5_moe").spec(QWEN36_35B).tensors()
    restricted = {name.partition(".linear_attn.")[2] for name, tensor in tensors.items() if tensor.dtypes}
    assert restricted == {"A_log", "norm.weight"}
    assert tensors["model.language_model.layers.0.linear_attn.A_log"].dtypes == ("F32", "BF16")


def test_explicit_layer_types_win_over_the_interval() -> None:
    kinds = ["full_attention"] * 40
    spec = load_family("qwen3_5_moe").spec(with_text(layer_types=kinds))
    assert not any("linear_attn" in name for name in spec.tensors())
    assert {layer.facts for layer in spec.layers} == {("full_attention",)}


def test_no_mtp_layers_means_no_mtp_tensors() -> None:
    family = load_family("qwen3_5_moe")
    for config in (with_text(mtp_num_hidden_layers=0), config_without("mtp_num_hidden_layers")):
        assert family.mtp_layers(config) == 0
        assert not any(name.startswith("mtp.") for name in family.spec(config).tensors())
    assert family.mtp_layers(QWEN36_35B) == 1


def test_qwen3_next_has_one_mtp_layer_that_its_config_does_not_mention() -> None:
    family = load_family("qwen3_next")
    assert family.mtp_layers(SMALL_GDN) == 1
    assert "mtp.layers.0.mlp.experts.2.up_proj.weight" in family.spec(SMALL_GDN).tensors()


def test_no_vision_config_means_no_vision_tensors() -> None:
    config = {key: value for key, value in QWEN36_35B.items() if key != "vision_config"}
    spec = load_family("qwen3_5_moe").spec(config)
    assert not spec.vision
    assert not any(tensor.scope == "vision" for tensor in spec.tensors().values())


@pytest.mark.parametrize(("tied", "optional"), [(True, True), (False, False)])
def test_a_tied_head_may_be_absent(tied: bool, optional: bool) -> None:
    spec = load_family("qwen3").spec(SMALL_TEXT | {"tie_word_embeddings": tied})
    assert spec.tied is tied
    assert spec.tensors()["lm_head.weight"].optional is optional


def test_every_missing_key_is_named_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        load_family("qwen3_5_moe").spec(config_without("hidden_size", "num_experts"))
    assert "hidden_size" in str(caught.value)
    assert "num_experts" in str(caught.value)
    assert isinstance(caught.value, UnreadableCheckpoint)
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": "2048"}, "hidden_size is '2048'"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"layer_types": ["full_attention"] * 39}, "layer_types names 39 layers"),
        ({"layer_types": "full_attention"}, "layer_types is 'full_attention'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_experts": -1}, "num_experts is -1"),
        ({"num_experts": 16_384}, f"tensors, more than {MOST_TENSORS:,}"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=re.escape(named)):
        load_family("qwen3_5_moe").spec(with_text(**changes))


def test_more_experts_than_any_model_has_are_no_fault() -> None:
    assert load_family("qwen3_5_moe").spec(with_text(num_experts=2_048)).experts


def test_a_default_that_needs_a_missing_key_names_both() -> None:
    config = {key: value for key, value in SMALL_MOE.items() if key != "num_experts"}
    with pytest.raises(SpecError, match=r"num_experts is missing.*num_local_experts"):
        load_family("qwen3_moe").spec(config)


def test_an_unknown_layout_is_refused() -> None:
    spec = load_family("qwen3_5_moe").spec(QWEN36_35B)
    with pytest.raises(KeyError, match="diagonal"):
        spec.tensors({"body": "diagonal"})


def test_expert_blocks_say_where_the_experts_are_and_how_large() -> None:
    blocks = load_family("qwen3_5_moe").spec(QWEN36_35B).experts
    assert len(blocks) == 41
    last = blocks[-1]
    assert (last.owner, last.scope) == ("mtp.layers.0.mlp.experts", "mtp")
    assert (last.count, last.intermediate, last.hidden) == (256, 512, 2048)
    assert list(last.modules("fused")) == [f"{last.owner}.gate_up_proj", f"{last.owner}.down_proj"]
    assert len(set(last.modules("per_expert"))) == 768
    assert "mtp.layers.0.mlp.experts.255.up_proj" in set(last.modules("per_expert"))


def test_a_spec_without_some_experts_lacks_their_tensors_and_no_others() -> None:
    spec = load_family("qwen3_5_moe").spec(QWEN36_35B)
    owner, layouts = "model.language_model.layers.3.mlp.experts", {"body": "per_expert", "mtp": "per_expert"}
    rest = spec.without({owner: frozenset({7, 255})})
    gone = [f"{owner}.{number}.{part}_proj" for number in (7, 255) for part in ("gate", "up", "down")]
    assert spec.tensors(layouts).keys() - rest.tensors(layouts).keys() == {f"{name}.weight" for name in gone}
    assert spec.tensors() == rest.tensors()
    (block,) = (block for block in rest.experts if block.owner == owner)
    assert len(list(block.modules("per_expert"))) == 3 * 254
    assert not set(block.modules("per_expert")) & set(gone)


def test_layouts_are_told_from_the_names_present() -> None:
    spec = load_family("qwen3_5_moe").spec(QWEN36_35B)
    modules = {
        "model.language_model.layers.0.mlp.experts.gate_up_proj",
        "model.language_model.layers.1.mlp.experts.gate_up_proj",
        "model.language_model.layers.1.mlp.experts.7.down_proj",
        "mtp.layers.0.mlp.experts.9.up_proj",
    }
    found = spec.layouts_in(modules)
    assert found["model.language_model.layers.0.mlp.experts"] == ("fused",)
    assert found["model.language_model.layers.1.mlp.experts"] == ("fused", "per_expert")
    assert found["model.language_model.layers.2.mlp.experts"] == ()
    assert spec.choose_layouts(modules) == {"body": "fused", "mtp": "per_expert"}
    assert spec.choose_layouts(frozenset()) == {"body": "fused", "mtp": "fused"}


@pytest.mark.parametrize(
    ("name", "kind", "linear"),
    [
        ("lm_head", "head", True),
        ("model.language_model.embed_tokens", "embedding", False),
        ("model.language_model.layers.7.self_attn.q_proj", "linear", True),
        ("model.language_model.layers.7.mlp.gate", "router", True),
        ("model.language_model.layers.7.mlp.shared_expert_gate", "router", True),
        ("model.language_model.layers.7.mlp.experts.3.gate_proj", "expert", True),
        ("model.language_model.layers.7.mlp.experts.gate_up_proj", "expert", False),
        ("model.language_model.layers.6.linear_attn.A_log", "state", False),
        ("model.language_model.layers.6.linear_attn.conv1d", "conv", False),
        ("model.language_model.layers.6.linear_attn.norm", "norm", False),
        ("model.visual.blocks.26.attn.qkv", "vision", True),
        ("model.visual.patch_embed.proj", "vision", False),
        ("mtp.layers.0.mlp.experts.12.down_proj", "expert", True),
        ("mtp.fc", "linear", True),
        ("model.language_model.layers.7.mlp.bogus", None, False),
    ],
)
def test_kind_and_linearity_of_a_name(name: str, kind: str | None, linear: bool) -> None:
    family = load_family("qwen3_5_moe")
    assert family.kind(name) == kind
    assert family.is_linear(name) is linear


def test_kind_knows_parameters_by_their_full_name() -> None:
    family = load_family("qwen3_5_moe")
    assert family.kind("model.visual.blocks.3.attn.qkv.bias") == "vision"
    assert family.kind("model.language_model.layers.0.mlp.gate.weight") == "router"


def test_fused_parameters_say_how_they_split() -> None:
    family = load_family("qwen3_5_moe")
    split = family.fused_split("mtp.layers.0.mlp.experts.gate_up_proj")
    assert split is not None
    assert (split.owner, split.parts) == ("mtp.layers.0.mlp.experts", ("gate_proj", "up_proj"))
    down = family.fused_split("model.language_model.layers.4.mlp.experts.down_proj")
    assert down is not None
    assert down.parts == ("down_proj",)


@pytest.mark.parametrize(
    "name", ["model.language_model.layers.4.mlp.shared_expert.down_proj", "mtp.layers.0.mlp.experts.3.down_proj"]
)
def test_other_parameters_do_not_split(name: str) -> None:
    assert load_family("qwen3_5_moe").fused_split(name) is None


@pytest.mark.parametrize(
    ("module", "kept"),
    [
        ("model.language_model.layers.0.mlp.gate", True),
        ("model.language_model.layers.0.mlp.shared_expert_gate", True),
        ("model.language_model.embed_tokens", True),
        ("model.language_model.layers.0.linear_attn.conv1d", True),
        ("model.language_model.layers.0.linear_attn.norm", True),
        ("model.visual.blocks.0.mlp.linear_fc2", True),
        ("mtp.fc", True),
        ("mtp.pre_fc_norm_hidden", True),
        ("model.language_model.layers.0.mlp.shared_expert.gate_proj", False),
        ("model.language_model.layers.0.mlp.experts.0.gate_proj", False),
        ("model.language_model.layers.0.linear_attn.in_proj_qkv", False),
        ("lm_head", False),
    ],
)
def test_modules_that_engines_keep_dense(module: str, kept: bool) -> None:
    rules = load_family("qwen3_5_moe").never_packed
    assert any(re.fullmatch(rule.pattern, module) for rule in rules) is kept


def test_known_families_are_found_by_model_type_and_others_are_not() -> None:
    assert family_names() == ("llama", "qwen3", "qwen3_5_moe", "qwen3_moe", "qwen3_next")
    found = find_family({"model_type": "qwen3_5_moe"})
    assert found is load_family("qwen3_5_moe")
    assert find_family({"model_type": "gpt2"}) is None
    assert find_family({}) is None
    with pytest.raises(KeyError, match="qwen3_next"):
        load_family("gpt2")


def test_no_two_families_claim_a_model_type() -> None:
    claimed = [model_type for name in family_names() for model_type in load_family(name).model_types]
    assert len(claimed) == len(set(claimed))


@pytest.mark.parametrize("name", family_names())
def test_a_family_file_satisfies_its_schema(name: str) -> None:
    from schemas import validate

    document = json.loads((Path(families_package.__file__).parent / f"{name}.json").read_text())
    assert validate(document, "family") == []


@pytest.mark.parametrize("name", family_names())
def test_the_mtp_prefix_and_the_fused_siblings_name_real_modules(name: str) -> None:
    family: Family = load_family(name)
    lines = [(section, template) for section in family.sections for template in section.tensors]
    leaves = {template.module.rpartition(".")[2] for _, template in lines}
    assert all(leaf in leaves for siblings in family.fused_siblings for leaf in siblings)
    if family.mtp:
        assert all(section.prefix.startswith(family.mtp.prefix) for section, _ in lines if section.scope == "mtp")


@pytest.mark.parametrize(
    ("text", "value"), [("2 * n + 1", 7), ("n // 2", 1), ("(n - 1) * v.d", 10), ("4", 4), ("n - 4", -1)]
)
def test_an_expression_is_integer_arithmetic(text: str, value: int) -> None:
    assert parse(text).evaluate({"n": 3, "v.d": 5}.__getitem__) == value


@pytest.mark.parametrize(
    "text", ["n / 2", "f(n)", "n ** 2", "1.5", "'n'", "a.b.c", "n if n else 1", "n[0]", "-n", "2 *"]
)
def test_an_expression_with_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expression"):
        parse(text)
