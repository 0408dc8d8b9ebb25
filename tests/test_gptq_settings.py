"""The gptq section of a recipe: what it says, how it is handed to llm-compressor, and what is calibrated at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gptq_builds import build, write_recipe

from checkpoint import open_checkpoint
from schemas import validate
from surgery.gptq import handover, settings_of, targets_for
from surgery.gptq.architecture import class_problems, model_class
from surgery.gptq.modules import Planned
from surgery.gptq.settings import ACTORDER, Settings
from surgery.recipe import load_recipe
from surgery.scheme import Group, Scheme

GROUPS = [{"targets": ["Linear"], "bits": 4, "group_size": 128}]
INT4 = Scheme(4, 128)


def test_every_field_of_the_section_is_read() -> None:
    section = {
        "groups": [{"targets": ["re:.*_proj$"], "bits": 8, "group_size": "channel", "symmetric": False}],
        "ignore": ["re:.*visual.*"],
        "dampening": 0.05,
        "block_size": 64,
        "actorder": "none",
        "sequential_targets": ["LlamaAttention", "LlamaMLP"],
        "targets_per_subgraph": 2,
        "memory": "3G",
        "calibrate_all_experts": False,
        "allow_rtn_fallbacks": True,
    }
    assert validate(section, "gptq") == []
    assert settings_of(section) == Settings(
        groups=(Group(("re:.*_proj$",), Scheme(8, None, symmetric=False)),),
        ignore=("re:.*visual.*",),
        dampening=0.05,
        block_size=64,
        actorder="none",
        sequential_targets=("LlamaAttention", "LlamaMLP"),
        targets_per_subgraph=2,
        memory=3 * 1024**3,
        calibrate_all_experts=False,
        allow_rtn_fallbacks=True,
    )


def test_groups_alone_are_a_section() -> None:
    assert validate({"groups": GROUPS}, "gptq") == []
    assert settings_of({"groups": GROUPS}) == Settings((Group(("Linear",), INT4),))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"groups": []}, "groups"),
        ({"dampening": 0}, "dampening"),
        ({"block_size": 0}, "block_size"),
        ({"actorder": "static"}, "actorder"),
        ({"sequential_targets": []}, "sequential_targets"),
        ({"sequential_targets": "layers"}, "sequential_targets"),
        ({"sequential_targets": "auto", "targets_per_subgraph": 2}, "sequential_targets"),
        ({"targets_per_subgraph": 2}, ""),
        ({"memory": "16GB"}, "memory"),
        ({"memory": 0}, "memory"),
        ({"allow_rtn_fallbacks": "yes"}, "allow_rtn_fallbacks"),
        ({"damping": 0.01}, ""),
    ],
)
def test_a_field_that_says_nothing_sensible_is_refused(change: dict[str, Any], place: str) -> None:
    assert place in {fault.path for fault in validate({"groups": GROUPS, **change}, "gptq")}


def test_the_order_of_columns_is_compressed_tensors_own() -> None:
    from compressed_tensors.quantization import ActivationOrdering

    assert ActivationOrdering(ACTORDER["weight"]) == ActivationOrdering.WEIGHT
    assert ActivationOrdering(ACTORDER["group"]) == ActivationOrdering.GROUP
    assert ACTORDER["none"] is None


def test_llm_compressor_no_longer_computes_the_order_that_is_refused() -> None:
    import torch
    from compressed_tensors.quantization import ActivationOrdering
    from llmcompressor.modifiers.gptq.helpers import apply_activation_ordering

    weights, hessians = torch.ones(1, 2, 2), torch.eye(2).unsqueeze(0)
    with pytest.raises(ValueError, match="Invalid activation ordering"):
        apply_activation_ordering(weights, hessians, ActivationOrdering.GROUP)
    apply_activation_ordering(weights, hessians, ActivationOrdering(ACTORDER["weight"]))


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"architectures": ["Qwen3_5MoeForConditionalGeneration"], "vision_config": {}}, None),
        ({"architectures": ["LlamaForCausalLM"]}, None),
        ({"architectures": ["Qwen3_5MoeForCausalLM"], "vision_config": {}}, "class-drops-vision"),
        ({"architectures": ["LlamaModel"]}, "class-unfit"),
        ({"architectures": []}, "class-unnamed"),
        ({}, "class-unnamed"),
    ],
)
def test_the_class_is_the_one_that_the_config_names_and_loads_all_of_it(
    config: dict[str, Any], code: str | None
) -> None:
    assert [problem.code for problem in class_problems(config)] == ([code] if code else [])
    assert model_class(config) == (config.get("architectures") or [None])[0]


def layer(number: int, experts: int) -> list[Planned]:
    """Attention with inputs of 100, experts of 10."""
    names = [("self_attn.q_proj", 100), ("self_attn.o_proj", 100)]
    names += [(f"mlp.experts.{expert}.{part}", 10) for expert in range(experts) for part in ("up_proj", "down_proj")]
    return [Planned(f"model.layers.{number}.{name}", 8, columns, "BF16", INT4) for name, columns in names]


MODULES = [module for number in range(3) for module in layer(number, 4)]
ATTENTION, EXPERT = 2 * 100 * 100 * 4, 2 * 10 * 10 * 4
BLOCKS = (r"re:model\.layers\.\d+\.mlp\.experts\.\d+$", r"re:model\.layers\.\d+\.self_attn$")


@pytest.mark.parametrize(
    ("memory", "entries", "together", "held"),
    [
        (ATTENTION + 4 * EXPERT, (r"re:model\.layers\.\d+$",), 1, ATTENTION + 4 * EXPERT),
        # one byte less than a layer: a step of two blocks may hold the attention of two layers, since only the model
        # knows in what order it runs them
        (ATTENTION + 4 * EXPERT - 1, BLOCKS, 1, ATTENTION),
        (2 * ATTENTION, (r"re:model\.layers\.\d+$",), 1, ATTENTION + 4 * EXPERT),
        (ATTENTION, BLOCKS, 1, ATTENTION),
        (ATTENTION - 1, BLOCKS, 1, ATTENTION),
    ],
)
def test_the_largest_steps_that_fit_are_taken(memory: int, entries: tuple[str, ...], together: int, held: int) -> None:
    found = targets_for(MODULES, Settings((), memory=memory))
    assert (found.entries, found.together, found.hessian_bytes) == (entries, together, held)


def test_blocks_are_taken_together_as_far_as_they_fit() -> None:
    alike = [module for number in range(3) for module in layer(number, 40) if "experts" in module.name]
    found = targets_for(alike, Settings((), memory=10 * EXPERT))
    assert (found.entries, found.together, found.hessian_bytes) == (BLOCKS[:1], 10, 10 * EXPERT)


@pytest.mark.parametrize(
    ("entries", "together", "held"),
    [
        ([r"re:.*\.self_attn$", r"re:.*\.experts\.\d+$"], 1, ATTENTION),
        ([r"re:.*\.self_attn$", r"re:.*\.experts\.\d+$"], 3, 2 * ATTENTION + EXPERT),
        ([r"re:.*\.self_attn$", r"re:.*\.mlp$"], 1, ATTENTION),
        ([r"re:.*\.self_attn$"], 1, None),
        (["LlamaDecoderLayer"], 1, None),
    ],
)
def test_what_named_targets_hold_is_known_where_names_tell(entries: list[str], together: int, held: int | None) -> None:
    settings = Settings((), sequential_targets=tuple(entries), targets_per_subgraph=together)
    found = targets_for(MODULES, settings)
    assert (found.entries, found.together, found.hessian_bytes) == (tuple(entries), together, held)


def test_one_layer_of_the_published_model_takes_nine_gigabytes(replica: Path) -> None:
    found = handover(load_recipe("body-int4-g128-gptq"), open_checkpoint(replica))
    experts, shared = 256 * (2 * 2048**2 + 512**2), 2 * 2048**2 + 512**2
    linear, full = 2 * 2048**2 + 4096**2, 3 * 2048**2 + 4096**2
    assert found.targets.hessian_bytes == 4 * (experts + shared + max(linear, full))
    assert found.problems == ()
    assert len(found.modules) == 40 * 257 * 3 + 30 * 3 + 10 * 4
    assert {str(module.scheme) for module in found.modules} == {"INT4 g128"}
    assert not any(part in module.name for module in found.modules for part in ("mtp", "visual", "gate.", "lm_head"))


def test_what_llm_compressor_is_given_ignores_all_that_stays_dense(qwen_moe_base: Path, tmp_path: Path) -> None:
    from checkpoint.patterns import first_match

    found = build(write_recipe(tmp_path, int8_head={}), qwen_moe_base)
    linears = ["lm_head", "model.language_model.layers.0.linear_attn.in_proj_a", "mtp.fc"]
    linears += ["model.language_model.layers.3.mlp.shared_expert_gate", "model.visual.blocks.0.attn.qkv"]
    assert all(first_match(found.job.ignore, name) for name in linears)
    assert not any(first_match(found.job.ignore, module.name) for module in found.modules)
    assert found.job.groups["group_0"]["weights"]["group_size"] == 128
    assert found.job.base == str(qwen_moe_base)
