"""Engines: what each builds for every module, by its release.

Expected results for vLLM 0.24 are what its own loader did with these spellings; those for transformers come from
transformers and compressed-tensors themselves, in `test_engines_transformers.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import qwen
from building import pack, write_checkpoint
from qwen import DRAFT, IGNORE, LAYER, SOUND, group

import verify.engines
from checkpoint import Checkpoint, survey
from schemas import validate
from verify.engines import MTP_IGNORE, UnknownEngine, engine_names, load_engine
from verify.run import judge

FOLDER = Path(verify.engines.__file__).parent


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Experts of the body packed, all else dense."""
    return qwen.stored(tmp_path_factory.mktemp("experts") / "model")


@pytest.fixture(scope="module")
def experts_and_head(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("head") / "model"
    return qwen.stored(folder, lambda module: qwen.body_experts(module) or module == "lm_head")


@pytest.fixture(scope="module")
def experts_everywhere(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The draft head's experts packed, too."""
    return qwen.stored(tmp_path_factory.mktemp("draft") / "model", lambda module: ".mlp.experts." in module)


@pytest.mark.parametrize("name", engine_names())
def test_engine_file_satisfies_its_schema(name: str) -> None:
    assert list(validate(json.loads((FOLDER / f"{name}.json").read_text()), "engine")) == []


@pytest.mark.parametrize("label", ["ollama", "vllm@", "vllm@latest", "vllm@0.24.0rc1", "VLLM", ""])
def test_unknown_engine_or_version_is_refused(label: str) -> None:
    with pytest.raises(UnknownEngine):
        load_engine(label)


def test_version_decides_which_changes_hold() -> None:
    assert not load_engine("vllm@0.26").has("shards_before_class")
    assert load_engine("vllm@0.27.0").has("shards_before_class")
    assert load_engine("vllm").has("shards_before_class")
    assert load_engine("vllm@0.24").label == "vllm@0.24"


def test_vllm_calls_modules_by_its_own_names(experts: Checkpoint) -> None:
    (resolved,) = qwen.judged(experts, qwen.config(*SOUND), "vllm").resolved
    layers = {module: one.layer for module, one in resolved.main.items()}
    assert layers["lm_head"] == "language_model.lm_head"
    assert layers[f"{LAYER}3.self_attn.k_proj"] == "language_model.model.layers.3.self_attn.qkv_proj"
    assert layers[f"{LAYER}0.linear_attn.in_proj_z"] == "language_model.model.layers.0.linear_attn.in_proj_qkvz"
    assert layers[f"{LAYER}2.mlp.experts.3.up_proj"] == "language_model.model.layers.2.mlp.experts"
    assert layers["model.visual.blocks.0.attn.qkv"] == "visual.blocks.0.attn.qkv"
    assert {"mtp.fc", "lm_head"} <= set(resolved.draft)
    assert not any(module.startswith("mtp.") for module in resolved.main)


EXPERTS_DENSE = {f"{DRAFT}mlp.experts.gate_up_proj", f"{DRAFT}mlp.experts.down_proj"}
EXPLICIT_DRAFT = [f"{DRAFT}mlp.experts.{e}.{p}" for e in range(4) for p in ("gate_proj", "up_proj", "down_proj")]
ATTENTION = [f"{LAYER}3.self_attn.{p}_proj" for p in "qkvo"]
EXPLICIT = [
    *(f"{LAYER}{n}.linear_attn.{p}" for n in range(3) for p in ("in_proj_qkv", "in_proj_z", "in_proj_a")),
    *(f"{LAYER}{n}.linear_attn.{p}" for n in range(3) for p in ("in_proj_b", "out_proj")),
    *(f"{LAYER}{n}.mlp.shared_expert.{p}_proj" for n in range(4) for p in ("gate", "up", "down")),
    *(f"{LAYER}{n}.mlp.{p}" for n in range(4) for p in ("gate", "shared_expert_gate")),
    *(f"model.visual.blocks.0.{p}" for p in ("attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2")),
    *(f"model.visual.merger.{p}" for p in ("linear_fc1", "linear_fc2")),
    *ATTENTION,
]


@pytest.mark.parametrize(
    "ignore, wrong",
    [
        (SOUND, set()),
        ((*IGNORE, "re:^mtp.*", "lm_head"), set()),
        ((*IGNORE, "re:mtp.*", "lm_head"), set()),
        ((*IGNORE, "mtp.fc", *EXPLICIT_DRAFT, "lm_head"), set()),
        ((*IGNORE, "mtp", "lm_head"), EXPERTS_DENSE | {"mtp.fc"}),
        ((*IGNORE, "mtp.fc", f"{DRAFT}mlp.experts", "lm_head"), EXPERTS_DENSE),
        ((*EXPLICIT, "re:.*mtp.*", "lm_head"), set()),
        ((*IGNORE[:3], *IGNORE[4:], "re:.*mtp.*"), set()),
        ((*IGNORE, "re:.*mtp.*"), set()),
    ],
    ids=[
        "sound",
        "anchored",
        "prefix",
        "explicit",
        "plain",
        "parent",
        "checkpoint-names",
        "no-router",
        "head-unlisted",
    ],
)
def test_vllm_ignores_what_it_ignored_when_run(experts: Checkpoint, ignore: tuple[str, ...], wrong: set[str]) -> None:
    assert set(qwen.astray(qwen.judged(experts, qwen.config(*ignore), "vllm@0.24"))) == wrong


@pytest.mark.parametrize(
    "without, wrong",
    [("visual", "model.visual."), ("shared_expert", "shared_expert."), ("linear_attn", "linear_attn.")],
)
def test_vllm_builds_packed_what_is_not_ignored(experts: Checkpoint, without: str, wrong: str) -> None:
    ignore = [entry for entry in SOUND if without not in entry]
    found = qwen.astray(qwen.judged(experts, qwen.config(*ignore), "vllm@0.24"))
    assert found
    assert all(wrong in module and stored == "dense" for module, stored in found.items())


def test_vllm_misses_regexes_anchored_on_checkpoint_names(experts: Checkpoint) -> None:
    anchored = [entry.replace("re:.*", r"re:model\.language_model.*") for entry in IGNORE[:4]]
    ignore = [*anchored, r"re:model\.visual.*", "re:mtp.*", "lm_head"]
    found = qwen.astray(qwen.judged(experts, qwen.config(*ignore), "vllm@0.24"))
    assert {f"{LAYER}0.linear_attn.out_proj", "model.visual.merger.linear_fc1", *ATTENTION} <= set(found)
    assert qwen.astray(qwen.judged(experts, qwen.config(*ignore), "transformers")) == {}


@pytest.mark.parametrize(
    "target, ignore, scopes",
    [
        ("re:.*lm_head$", [], set()),
        ("lm_head", [], {"main"}),
        ("language_model.lm_head", [], {"draft"}),
        ("re:.*lm_head$", ["lm_head"], {"draft"}),
        ("re:^lm_head$", [], {"main"}),
    ],
)
def test_vllm_reaches_the_head_under_both_its_names(
    experts_and_head: Checkpoint, target: str, ignore: list[str], scopes: set[str]
) -> None:
    groups = {"group_0": group("Linear"), "group_1": group(target)}
    document = qwen.config(*IGNORE, "re:.*mtp.*", *ignore, **groups)
    (resolved,) = qwen.judged(experts_and_head, document, "vllm@0.24").resolved
    states = {"main": resolved.main["lm_head"].built, "draft": resolved.draft["lm_head"].built}
    assert {scope for scope, built in states.items() if built == "dense"} == scopes


def test_vllm_before_0_20_builds_no_packed_head(experts_and_head: Checkpoint) -> None:
    document = qwen.config(*IGNORE, "re:.*mtp.*", group_0=group("Linear"), group_1=group("re:.*lm_head$"))
    assert qwen.astray(qwen.judged(experts_and_head, document, "vllm@0.19")) == {"lm_head": "packed"}
    assert qwen.astray(qwen.judged(experts_and_head, document, "vllm@0.20")) == {}


def test_linear_is_no_target_of_the_head_in_vllm_but_is_in_transformers(experts: Checkpoint) -> None:
    document = qwen.config(*IGNORE, "re:.*mtp.*")
    assert qwen.astray(qwen.judged(experts, document, "vllm")) == {}
    assert qwen.astray(qwen.judged(experts, document, "transformers")) == {"lm_head": "dense"}


def test_packed_draft_experts_resolve_where_they_are_not_ignored(experts_everywhere: Checkpoint) -> None:
    loud, quiet = (*IGNORE, "re:.*mtp.*", "lm_head"), (*IGNORE, "mtp.fc", "lm_head")
    assert qwen.astray(qwen.judged(experts_everywhere, qwen.config(*quiet), "vllm@0.24")) == {}
    assert len(qwen.astray(qwen.judged(experts_everywhere, qwen.config(*loud), "vllm@0.24"))) == 12
    no_input = qwen.config(*IGNORE, "lm_head")
    assert qwen.astray(qwen.judged(experts_everywhere, no_input, "vllm@0.24")) == {"mtp.fc": "dense"}
    assert qwen.astray(qwen.judged(experts_everywhere, no_input, "sglang")) == {}


def faults(case: Any) -> list[tuple[str, str]]:
    (resolved,) = case.resolved
    return [(error.fault, error.layer) for error in resolved.errors]


@pytest.mark.parametrize("engine", ["vllm@0.24", "vllm", "sglang"])
def test_shards_that_are_partly_ignored_cannot_be_built(experts: Checkpoint, engine: str) -> None:
    ignore = (*SOUND[:1], r"re:.*in_proj_(qkv|a|b)$", r"re:.*out_proj$", *SOUND[2:])
    found = faults(qwen.judged(experts, qwen.config(*ignore), engine))
    assert {fault for fault, _ in found} == {"shards"}
    assert len(found) == 3
    assert all(layer.endswith("in_proj_qkvz") for _, layer in found)


@pytest.mark.parametrize("engine", ["vllm@0.24", "sglang"])
def test_only_expert_0_decides(experts: Checkpoint, engine: str) -> None:
    others = qwen.judged(experts, qwen.config(*SOUND, r"re:.*experts\.[1-3]\..*"), engine)
    assert qwen.astray(others) == {}
    first = qwen.judged(experts, qwen.config(*SOUND, f"{LAYER}1.mlp.experts.0.gate_proj"), engine)
    assert [fault for fault, _ in faults(first)] == ["experts"]


TWO_ALIKE = {"group_0": group("Linear"), "group_1": group("re:.*experts.*down_proj")}


@pytest.mark.parametrize(
    "changes, torn",
    [
        ({}, set()),
        ({"format": None}, {"sglang@0.5.23"}),
        ({"weights": {"num_bits": 4, "group_size": 32}}, set()),
        ({"weights": {"num_bits": 8, "group_size": 32}}, {"vllm@0.24", "sglang@0.5.23"}),
    ],
)
def test_experts_in_two_groups_are_built_if_the_groups_are_parsed_alike(
    experts: Checkpoint, changes: dict[str, Any], torn: set[str]
) -> None:
    """As the engines' own code judges them (`test_engines_own_code.py`): vLLM fills in a missing format, SGLang not."""
    document = qwen.config(*SOUND, **TWO_ALIKE | {"group_0": group("Linear") | changes})
    for engine in ("vllm@0.24", "sglang@0.5.23"):
        found = {fault for fault, _ in faults(qwen.judged(experts, document, engine))}
        assert found == ({"experts"} if engine in torn else set())


def test_sglang_refuses_experts_of_which_one_projection_is_neither_ignored_nor_targeted(experts: Checkpoint) -> None:
    document = qwen.config("re:.*gate_proj", "re:.*mtp.*", group_0=group("re:.*_attn.*", "re:.*shared_expert.*"))
    found = faults(qwen.judged(experts, document, "sglang"))
    assert ("no-target", f"{LAYER}1.mlp.experts") in found
    both = qwen.config("re:.*experts.*", "re:.*mtp.*", group_0=group("re:.*_attn.*", "re:.*shared_expert.*"))
    assert faults(qwen.judged(experts, both, "sglang")) == []


def test_of_two_spellings_of_a_module_vllm_takes_the_last(experts: Checkpoint) -> None:
    spelled, own = f"{LAYER}3.self_attn.o_proj", "language_model.model.layers.3.self_attn.o_proj"
    document = qwen.config(group_0=group(spelled), group_1=group(own, bits=8))
    (resolved,) = qwen.judged(experts, document, "vllm@0.24").resolved
    assert resolved.main[spelled].group == "group_1"


def test_vllm_looked_up_the_class_before_the_shards_until_0_27(tmp_path: Path) -> None:
    qkv = {f"{LAYER}3.self_attn.{part}_proj" for part in "qkv"}
    checkpoint = qwen.stored(tmp_path / "model", lambda module: qwen.body_experts(module) or module in qkv)
    ignore = (r"re:.*layers\.3\.self_attn\.o_proj", *IGNORE[1:], "re:.*mtp.*", "lm_head")
    groups = {"group_0": group("Linear"), "group_1": group(r"re:.*\.[qkv]_proj$", bits=8)}
    for engine, taken in (("vllm@0.26", "group_0"), ("vllm@0.27", "group_1")):
        (resolved,) = qwen.judged(checkpoint, qwen.config(*ignore, **groups), engine).resolved
        assert {resolved.main[module].group for module in qkv} == {taken}


def test_sglang_refuses_what_is_neither_targeted_nor_ignored(experts: Checkpoint) -> None:
    document = qwen.config("re:.*mtp.*", group_0=group(r"re:.*mlp\.experts\..*"))
    found = faults(qwen.judged(experts, document, "sglang"))
    assert ("no-target", f"{LAYER}3.self_attn.qkv_proj") in found
    assert not any("visual" in layer or layer == "lm_head" for _, layer in found)
    assert faults(qwen.judged(experts, document, "vllm")) == []


def test_sglang_takes_an_exact_ignore_for_the_end_of_a_name(experts: Checkpoint) -> None:
    ignore = (*IGNORE[:2], "shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj", *IGNORE[3:])
    document = qwen.config(*ignore, "re:.*mtp.*", "lm_head")
    assert qwen.astray(qwen.judged(experts, document, "sglang")) == {}
    assert len(qwen.astray(qwen.judged(experts, document, "vllm"))) == 12


def test_sglang_draft_knows_shards_since_0_5_21(experts: Checkpoint) -> None:
    explicit = [f"{DRAFT}self_attn.{part}_proj" for part in "qkvo"]
    ignore = [r"re:.*language_model.*self_attn.*", *IGNORE[1:], *explicit, r"re:mtp.*mlp.*", "lm_head"]
    old = qwen.astray(qwen.judged(experts, qwen.config(*ignore), "sglang@0.5.20"))
    assert set(old) == {f"{DRAFT}self_attn.{part}_proj" for part in "qkv"}
    assert qwen.astray(qwen.judged(experts, qwen.config(*ignore), "sglang@0.5.21")) == {}


@pytest.mark.parametrize("entry", MTP_IGNORE)
@pytest.mark.parametrize("engine", ["vllm@0.24", "vllm", "sglang@0.5.19", "sglang", "transformers"])
def test_each_mtp_entry_keeps_the_draft_head_dense_everywhere(experts: Checkpoint, entry: str, engine: str) -> None:
    assert qwen.astray(qwen.judged(experts, qwen.config(*IGNORE, entry, "lm_head"), engine)) == {}


def test_a_family_without_a_file_is_judged_by_shapes(tmp_path: Path) -> None:
    llama = {
        "model.layers.0.self_attn.q_proj.weight": ("BF16", (64, 64), None),
        "model.layers.0.self_attn.q_norm.weight": ("BF16", (64,), None),
        "lm_head.weight": ("BF16", (64, 64), None),
    }
    entries = pack(llama, lambda module: module.endswith("q_proj"))
    document = {"model_type": "unheard_of", "quantization_config": qwen.config("lm_head")["quantization_config"]}
    checkpoint = survey(write_checkpoint(tmp_path / "model", entries, document))
    for engine in ("vllm", "sglang", "transformers"):
        case = qwen.judged(checkpoint, document, engine)
        assert qwen.astray(case) == {}
        assert "model.layers.0.self_attn.q_norm" not in case.resolved[0].main


@pytest.mark.parametrize(
    "model_type, engine, wrong",
    [
        ("qwen3_next", "vllm", {"lm_head": "packed"}),
        ("qwen3_next", "transformers", {}),
        ("qwen3_moe", "vllm", {"model.layers.0.mlp.gate": "dense"}),
        ("qwen3_moe", "transformers", {}),
    ],
)
def test_families_differ_in_what_they_hand_the_config_to(
    tmp_path: Path, model_type: str, engine: str, wrong: dict[str, str]
) -> None:
    """vLLM 0.24.0 builds the head of Qwen3-Next without a config, and the router of Qwen3-MoE with it."""
    dense = {
        "lm_head.weight": ("BF16", (64, 64), None),
        "model.layers.0.mlp.gate.weight": ("BF16", (4, 64), None),
    }
    entries = pack(dense, lambda module: module == "lm_head")
    packed = qwen.config(group_0=group("Linear"), group_1=group("re:.*lm_head$"))["quantization_config"]
    document = {"model_type": model_type, "quantization_config": packed}
    checkpoint = survey(write_checkpoint(tmp_path / "model", entries, document))
    assert qwen.astray(qwen.judged(checkpoint, document, engine)) == wrong


def test_a_finding_names_what_each_engine_builds_where_they_differ(experts: Checkpoint) -> None:
    """A head under `Linear`: an nn.Linear in transformers, a class of its own in vLLM and SGLang."""
    document = qwen.config(*(entry for entry in SOUND if entry != "lm_head"))
    (finding,) = judge(qwen.judged(experts, document), only=("C20",)).findings
    assert "built packed in transformers, dense in vLLM, " in finding.found
    assert finding.engines == ("transformers",)


def test_engines_that_read_a_module_by_another_group_are_one_finding(tmp_path: Path) -> None:
    """vLLM and SGLang take the first target in the config's order, compressed-tensors the first in the alphabet."""
    groups = {"group_0": group("re:.*self_attn.*"), "group_1": group("re:.*q_proj$", bits=8)}
    entries = pack(qwen.entries(), lambda module: ".3.self_attn." in module and module.endswith("_proj"))
    document = qwen.config(*(entry for entry in SOUND if "self_attn" not in entry), **groups)
    checkpoint = survey(write_checkpoint(tmp_path, entries, document))
    (finding,) = judge(qwen.judged(checkpoint, document), only=("C06",)).findings
    assert finding.engines == ("vllm", "sglang")
    assert finding.found.endswith("read by group_0 in vLLM and SGLang")
