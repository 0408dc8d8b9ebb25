"""The published builds on the real model: every name, dtype and shape, the config, the index, the bytes. Plans only."""

from __future__ import annotations

from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pytest
from writing import codes, drafted, written

from checkpoint import Draft, Plan, make_plan, open_checkpoint
from checkpoint.layout import layout
from demo.replica import inventory
from schemas import validate
from surgery import Scheme, graft_mtp, int8_head, load_preset, preset_names, quantize
from verify import verify

Inventory = dict[str, tuple[str, tuple[int, ...]]]

WIDTHS = {"BF16": 2, "I32": 4, "I64": 8}
EXPERT_ELEMENTS = 40 * 256 * 3 * 512 * 2048
MTP_EXPERT_ELEMENTS = 256 * 3 * 512 * 2048
BASE_BYTES = 71_903_645_408

IGNORE_EXPERTS = [
    r"re:.*linear_attn.*",
    r"re:.*shared_expert.*",
    r"re:.*visual.*",
    r"re:.*self_attn.*",
    r"re:.*mlp\.gate$",
    r"re:.*lm_head$",
    r"re:.*mtp\.fc$",
]
IGNORE_BODY = [
    r"re:^mtp.*",
    r"re:.*mtp.*",
    r"re:.*visual.*",
    r"re:.*mlp\.gate$",
    r"re:.*shared_expert_gate$",
    r"re:.*in_proj_a$",
    r"re:.*in_proj_b$",
    r"re:.*lm_head$",
]


def build(source: Path, name: str, *further: Any) -> Draft:
    preset = load_preset(name)
    return drafted(source, partial(quantize, groups=preset.groups, ignore=preset.ignore, maths=preset.maths), *further)


@pytest.fixture(scope="module")
def experts(replica: Path) -> Draft:
    return build(replica, "experts-int4-g32")


@pytest.fixture(scope="module")
def experts_with_dense_mtp(experts: Draft) -> Draft:
    return graft_mtp(experts, experts.origin)


@pytest.fixture(scope="module")
def body(replica: Path) -> Draft:
    return build(replica, "body-int4-g128")


def expected_of(is_packed: Any, group_size: int) -> Inventory:
    """The inventory of the release with the modules that `is_packed` names packed to INT4, by the format's shapes."""
    result: Inventory = {}
    for name, (dtype, shape) in inventory().items():
        modules = list(_modules(name, tuple(shape)))
        if not any(is_packed(module) for module, _ in modules):
            result[name] = (dtype, tuple(shape))
            continue
        for module, (rows, columns) in modules:
            result[f"{module}.weight_packed"] = ("I32", (rows, columns // 8))
            result[f"{module}.weight_scale"] = ("BF16", (rows, columns // group_size))
            result[f"{module}.weight_shape"] = ("I64", (2,))
    return result


def _modules(name: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    owner, _, leaf = name.rpartition(".")
    if leaf == "gate_up_proj":
        halves = ("gate_proj", "up_proj")
        return [(f"{owner}.{e}.{half}", (shape[1] // 2, shape[2])) for e in range(shape[0]) for half in halves]
    if leaf == "down_proj":
        return [(f"{owner}.{e}.down_proj", shape[1:]) for e in range(shape[0])]
    return [(name.removesuffix(".weight"), shape)]


def is_expert(module: str) -> bool:
    return ".mlp.experts." in module


def is_body_linear(module: str) -> bool:
    leaves = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj_qkv", "in_proj_z")
    return module.startswith("model.language_model.") and module.endswith((*leaves, "linear_attn.out_proj"))


def inventory_of(draft: Draft) -> Inventory:
    return {name: (source.dtype, source.shape) for name, source in draft.tensors.items()}


def bytes_of(found: Inventory) -> int:
    return sum(WIDTHS[dtype] * prod(shape) for dtype, shape in found.values())


def packed_bytes(elements: int, modules: int, bits: int, group_size: int) -> int:
    return elements * bits // 8 + elements // group_size * 2 + modules * 16


def test_experts_preset_packs_every_expert_those_of_the_mtp_head_too(experts: Draft) -> None:
    assert codes(experts) == []
    assert inventory_of(experts) == expected_of(is_expert, 32)
    assert len(experts.tensors) == 95_427


def test_experts_preset_with_the_mtp_head_of_the_base_keeps_its_19_tensors(experts_with_dense_mtp: Draft) -> None:
    expected = expected_of(lambda module: is_expert(module) and not module.startswith("mtp."), 32)
    assert inventory_of(experts_with_dense_mtp) == expected
    assert len(expected) == 93_125


def test_body_preset_packs_the_large_projections_and_keeps_the_mtp_head_dense(body: Draft) -> None:
    assert codes(body) == []
    assert inventory_of(body) == expected_of(is_body_linear, 128)
    assert len(body.tensors) == 93_625


@pytest.mark.parametrize("name, count", [("experts_with_dense_mtp", 93_127), ("body", 93_627)])
def test_int8_head_adds_two_tensors(name: str, count: int, request: pytest.FixtureRequest) -> None:
    draft = int8_head(request.getfixturevalue(name))
    assert codes(draft) == []
    head = {key: value for key, value in inventory_of(draft).items() if key.startswith("lm_head")}
    assert head == {
        "lm_head.weight_packed": ("I32", (248_320, 512)),
        "lm_head.weight_scale": ("BF16", (248_320, 16)),
        "lm_head.weight_shape": ("I64", (2,)),
    }
    assert len(draft.tensors) == count


def test_bytes_of_each_build_are_what_arithmetic_says(experts: Draft, body: Draft) -> None:
    dense = BASE_BYTES - 2 * (EXPERT_ELEMENTS + MTP_EXPERT_ELEMENTS)
    packed = packed_bytes(EXPERT_ELEMENTS + MTP_EXPERT_ELEMENTS, 41 * 768, 4, 32)
    assert bytes_of(inventory_of(experts)) == dense + packed == 24_441_405_152
    others = 40 * 3 * 512 * 2048 + 30 * (8192 + 4096 + 4096) * 2048 + 10 * (8192 + 1024 + 4096) * 2048
    dense = BASE_BYTES - 2 * (EXPERT_ELEMENTS + others)
    packed = packed_bytes(EXPERT_ELEMENTS + others, 40 * 768 + 250, 4, 128)
    assert bytes_of(inventory_of(body)) == dense + packed == 22_003_392_128
    head = packed_bytes(248_320 * 2048, 1, 8, 128) - 2 * 248_320 * 2048
    assert bytes_of(inventory_of(int8_head(body))) == dense + packed + head == 21_502_779_024


def test_the_index_names_every_tensor_in_the_shard_that_its_original_had(body: Draft) -> None:
    plan: Plan = make_plan(body)
    assert plan.index is not None
    assert plan.index.value["metadata"]["total_size"] == 22_003_392_128
    weight_map = plan.index.value["weight_map"]
    assert weight_map.keys() == body.tensors.keys()
    origin = {name: ref.path.name for name, ref in body.origin.tensors.items()}
    layer = "model.language_model.layers.7.mlp.experts."
    assert weight_map[f"{layer}200.up_proj.weight_scale"] == origin[f"{layer}gate_up_proj"]
    assert weight_map[f"{layer}200.down_proj.weight_packed"] == origin[f"{layer}down_proj"]
    assert {shard.name for shard in plan.shards} == set(origin.values())


@pytest.mark.parametrize("name, ignore", [("experts", IGNORE_EXPERTS), ("body", IGNORE_BODY)])
def test_the_config_is_the_bases_plus_one_group(name: str, ignore: list[str], request: pytest.FixtureRequest) -> None:
    draft = request.getfixturevalue(name)
    target, size = {
        "experts": (r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$", 32),
        "body": ("Linear", 128),
    }[name]
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": size}
    group = {"targets": [target], "weights": weights | {"dynamic": False}, "format": "pack-quantized"}
    assert draft.config.value == draft.origin.config | {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group | {"input_activations": None, "output_activations": None}},
            "ignore": ignore,
        }
    }
    origin = draft.origin.config_document
    assert origin is not None
    assert draft.config.text.startswith(origin.text.rstrip("}\n"))


def test_a_dense_mtp_head_is_ignored_in_both_spellings(experts_with_dense_mtp: Draft, body: Draft) -> None:
    for draft in (experts_with_dense_mtp, body):
        ignore = draft.config.value["quantization_config"]["ignore"]
        assert {"re:^mtp.*", "re:.*mtp.*"} <= set(ignore)


@pytest.mark.parametrize("name", preset_names())
def test_what_a_preset_writes_satisfies_its_profile_and_all_rules(
    name: str, qwen_moe_base: Path, tmp_path: Path
) -> None:
    preset = load_preset(name)
    packing = partial(quantize, groups=preset.groups, ignore=preset.ignore, maths=preset.maths)
    out = written(qwen_moe_base, tmp_path / "out", packing)
    assert validate(layout(open_checkpoint(out)), f"profiles/{preset.profile}") == []
    assert [finding for finding in verify(out, base=qwen_moe_base).findings if finding.severity == "error"] == []


def test_presets_are_known_by_the_names_of_their_recipes() -> None:
    assert preset_names() == ("body-int4-g128", "experts-int4-g32")
    with pytest.raises(KeyError, match="nonesuch"):
        load_preset("nonesuch")


def test_another_group_size_goes_into_all_groups_and_gives_up_the_profile() -> None:
    preset = load_preset("experts-int4-g32").regrouped(64)
    assert [group.scheme for group in preset.groups] == [Scheme(4, 64)]
    assert preset.profile is None
