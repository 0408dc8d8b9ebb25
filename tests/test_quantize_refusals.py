"""What `quantize` refuses on headers and config alone, and how it says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from packing import EXPERTS, G32, llama, moe, packing
from writing import codes, drafted

from checkpoint import Draft, Refused, make_plan
from surgery import Group, Scheme, quantize

QKV = r"re:.*self_attn\.[qkv]_proj$"


def message(draft: Draft, code: str) -> str:
    (problem,) = [problem for problem in draft.problems if problem.code == code]
    return str(problem)


# case -> (tensors of the model that are otherwise, operation, code of the refusal, words of its message)
REFUSALS: dict[str, tuple[dict[str, Any], Callable[[Draft], Draft], str, list[str]]] = {
    "a target that selects nothing": ({}, packing(QKV, "re:.*qkv_proj$"), "target-unmatched", ["re:.*qkv_proj$"]),
    "a target that an earlier one leaves nothing": (
        {},
        partial(quantize, groups=[Group(("Linear",), G32), Group((QKV,), G32)]),
        "target-unmatched",
        [QKV],
    ),
    "a module that is no matrix": (
        {"model.layers.0.mlp.down_proj.weight": ("BF16", (128, 16, 16))},
        packing("Linear"),
        "not-a-matrix",
        ["model.layers.0.mlp.down_proj", "[128, 16, 16]", "a matrix"],
    ),
    "columns that the group size does not divide": (
        {f"model.layers.{n}.mlp.down_proj.weight": ("BF16", (128, 320)) for n in (0, 1)},
        packing("Linear", scheme=Scheme(4, 128)),
        "group-size",
        ["model.layers.{0-1}.mlp.down_proj", "320 columns", "groups of 128", "32, 64, channel"],
    ),
    "a dtype that is not for weights": (
        {"model.layers.0.self_attn.o_proj.weight": ("F8_E4M3", (128, 128))},
        packing("Linear"),
        "dtype-unsupported",
        ["model.layers.0.self_attn.o_proj", "F8_E4M3", "unquantized base", "model-00001-of-00002.safetensors"],
    ),
    "a matrix without rows": (
        {"model.layers.0.self_attn.o_proj.weight": ("BF16", (0, 128))},
        packing("Linear"),
        "empty",
        ["model.layers.0.self_attn.o_proj", "[0, 128]"],
    ),
    "q, k, v in different states": (
        {},
        packing(r"re:.*[qk]_proj$"),
        "siblings-differ",
        ["model.layers.{0-1}.self_attn", "q_proj INT4 g32", "v_proj dense"],
    ),
    "gate and up in different schemes": (
        {},
        partial(quantize, groups=[Group((r"re:.*gate_proj$",), G32), Group((r"re:.*up_proj$",), Scheme(8, 32))]),
        "siblings-differ",
        ["model.layers.{0-1}.mlp", "gate_proj INT4 g32, up_proj INT8 g32"],
    ),
    "a module that engines never read packed": (
        {},
        packing("Linear", "model.embed_tokens"),
        "never-packed",
        ["model.embed_tokens", "plain rows", "--ignore"],
    ),
    "an invalid target": ({}, packing("re:*_proj"), "pattern-invalid", ["re:*_proj"]),
    "an invalid ignore entry": ({}, packing("Linear", ignore=["re:("]), "pattern-invalid", ["re:("]),
    "no target at all": ({}, packing(), "no-target", ["--target"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_before_anything_is_read(case: str, tmp_path: Path) -> None:
    tensors, operation, code, words = REFUSALS[case]
    draft = drafted(llama(tmp_path / "a", tensors), operation)
    assert codes(draft) == [code]
    text = message(draft, code)
    assert [word for word in words if word not in text] == []
    with pytest.raises(Refused):
        make_plan(draft)


MOE_REFUSALS: dict[str, tuple[dict[str, Any], Callable[[Draft], Draft], list[str], list[str]]] = {
    "qkv and z in different schemes": (
        {},
        packing(r"re:.*in_proj_qkv$"),
        ["siblings-differ"],
        ["model.language_model.layers.{0-2}.linear_attn", "in_proj_qkv INT4 g32, in_proj_z dense"],
    ),
    "b and a in different schemes": (
        {},
        packing(r"re:.*in_proj_b$"),
        ["siblings-differ"],
        ["model.language_model.layers.{0-2}.linear_attn", "in_proj_a dense"],
    ),
    "experts of one layer in different schemes": (
        {},
        packing(r"re:.*experts\.\d+\.down_proj$"),
        ["experts-differ"],
        ["model.language_model.layers.{0-3}.mlp.experts", "INT4 g32, dense"],
    ),
    "one expert left dense": (
        {},
        packing(EXPERTS, ignore=[r"re:.*layers\.0\.mlp\.experts\.3\.", "re:mtp.*"]),
        ["experts-differ"],
        ["model.language_model.layers.0.mlp.experts", "INT4 g32, dense"],
    ),
    "rows that cannot be shared out to gate and up": (
        {"model.language_model.layers.2.mlp.experts.gate_up_proj": ("BF16", (4, 127, 128))},
        packing(EXPERTS),
        ["experts-uneven"],
        ["model.language_model.layers.2.mlp.experts.gate_up_proj", "127 rows", "a multiple of 2"],
    ),
    "the vision tower under Linear": (
        {},
        packing("Linear", ignore=["re:mtp.*", r"re:.*mlp\.gate$", r"re:.*shared_expert_gate$"]),
        ["never-packed"],
        ["model.visual.", "vision tower"],
    ),
    "a head of other rows than the vocabulary": (
        {"lm_head.weight": ("BF16", (96, 128))},
        packing("lm_head"),
        ["head-shape"],
        ["lm_head", "96 rows", "64, the vocab_size"],
    ),
}


@pytest.mark.parametrize("case", MOE_REFUSALS)
def test_refused_for_what_engines_fuse_or_never_pack(case: str, tmp_path: Path) -> None:
    tensors, operation, expected, words = MOE_REFUSALS[case]
    draft = drafted(moe(tmp_path / "a", tensors), operation)
    assert codes(draft) == expected
    text = "\n".join(map(str, draft.problems))
    assert [word for word in words if word not in text] == []


def test_experts_that_are_stored_one_by_one_are_judged_alike(qwen_moe_f32_base: Path) -> None:
    draft = drafted(qwen_moe_f32_base, packing(r"re:mtp\.layers\.0\.mlp\.experts\.[0-6]\..*"))
    assert codes(draft) == ["experts-differ"]
    assert "mtp.layers.0.mlp.experts: experts would be INT4 g32, dense" in str(draft.problems[0])
    assert codes(drafted(qwen_moe_f32_base, packing(r"re:mtp\.layers\.0\.mlp\.experts\..*"))) == []


@pytest.mark.parametrize(
    "config, method",
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"compression_config": {}}, "unknown"),
        ({"text_config": {"quantization_config": {"quant_method": "gptq"}}}, "gptq"),
    ],
)
def test_refused_for_what_is_quantized_already(config: dict[str, Any], method: str, tmp_path: Path) -> None:
    draft = drafted(llama(tmp_path / "a", **config), packing("Linear"))
    assert codes(draft) == ["already-quantized"]
    assert f"({method})" in message(draft, "already-quantized")


def test_refused_for_packed_modules_without_a_config(tmp_path: Path) -> None:
    source = llama(tmp_path / "a", {"model.layers.0.mlp.up_proj.weight_packed": ("I32", (256, 16))})
    assert codes(drafted(source, packing(QKV))) == ["already-quantized"]


def test_refused_for_linear_where_the_family_is_unknown(tmp_path: Path) -> None:
    draft = drafted(llama(tmp_path / "a", model_type="nonesuch"), packing("Linear"))
    assert codes(draft) == ["family-unknown"]
    assert "'nonesuch'" in message(draft, "family-unknown")


@pytest.mark.parametrize("tied, expected", [(True, ["tied"]), (False, [])])
def test_refused_for_a_head_that_is_the_embedding(tied: bool, expected: list[str], tmp_path: Path) -> None:
    draft = drafted(llama(tmp_path / "a", tie_word_embeddings=tied), packing(r"re:.*lm_head$"))
    assert codes(draft) == expected


def test_everything_that_headers_and_config_tell_is_reported_together(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.self_attn.o_proj.weight": ("BF16", (128, 16, 8)),
        "model.layers.1.mlp.down_proj.weight": ("BF16", (128, 200)),
    }
    targets = (r"re:.*(o|down|q)_proj$", "model.embed_tokens", "re:.*nonesuch$")
    draft = drafted(llama(tmp_path / "a", tensors), packing(*targets))
    expected = {"target-unmatched", "not-a-matrix", "group-size", "never-packed", "siblings-differ"}
    assert set(codes(draft)) == expected


def test_a_thousand_modules_with_one_fault_are_one_line(replica: Path) -> None:
    draft = drafted(replica, packing(EXPERTS, scheme=Scheme(4, 96)))
    owners = ("model.language_model.layers.{0-39}.mlp.experts.{0-255}", "mtp.layers.0.mlp.experts.{0-255}")
    leaves = ("gate_proj", "up_proj", "down_proj")
    assert {problem.tensor for problem in draft.problems} == {f"{o}.{leaf}" for o in owners for leaf in leaves}
