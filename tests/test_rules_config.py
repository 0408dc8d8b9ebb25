"""Rules on quantization_config, targets, ignore list and head: each fires on its defect and is silent on a sound build.

Which defects are errors in vLLM was seen with vLLM 0.24.0's own loader; in transformers, with transformers 5.17.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import qwen
from building import Entries, found, pack, without, write_checkpoint
from qwen import IGNORE, LAYER, SOUND, group

from checkpoint import Checkpoint, survey
from verify.case import Case
from verify.run import judge

Build = dict[str, Checkpoint]
MTP = "re:.*mtp.*"
SHARED = (*IGNORE[:2], r"re:.*shared_expert_gate$", *IGNORE[3:], MTP, "lm_head")
NO_SHARED = tuple(entry for entry in SOUND if "shared" not in entry)
NO_VISION = tuple(entry for entry in SOUND if "visual" not in entry)
HEAD = {"group_0": group("Linear"), "group_1": group("re:.*lm_head$", bits=8)}
HEAD_BY_NAME = {"group_0": group("Linear"), "group_1": group("lm_head", bits=8)}
INT8_CACHE = {"type": "int", "num_bits": 8}


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Storages by what is packed in them."""

    def also(*ends: str) -> Callable[[str], bool]:
        return lambda module: not module.startswith("mtp.") and (qwen.body_experts(module) or module.endswith(ends))

    selections = {
        "experts": also("nothing"),
        "head": also("lm_head"),
        "q": also("3.self_attn.q_proj"),
        "shared": also("shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"),
        "router": also("0.mlp.gate"),
        "nothing": lambda module: False,
    }
    folder = tmp_path_factory.mktemp("builds")
    stored = {name: qwen.stored(folder / name, select) for name, select in selections.items()}
    return stored | {"but one": one_expert_dense(folder / "but-one")}


def one_expert_dense(folder: Path) -> Checkpoint:
    """Experts of the body packed, but for one of layer 1."""
    entries = pack(qwen.entries(), qwen.body_experts)
    for part in ("gate_proj", "up_proj", "down_proj"):
        module = f"{LAYER}1.mlp.experts.2.{part}"
        rows, words = entries[f"{module}.weight_packed"][1]
        entries = without(entries, *(f"{module}.weight_{suffix}" for suffix in ("packed", "scale", "shape")))
        entries[f"{module}.weight"] = ("BF16", (rows, words * 8), None)
    return survey(write_checkpoint(folder, entries, qwen.config(*SOUND)))


def rules(checkpoint: Checkpoint, document: dict[str, Any], *engines: str, severity: str | None = None) -> list[str]:
    """The ids of the config's and the head's rules that find something."""
    return found(judge(qwen.judged(checkpoint, document, *engines), only=("C", "L")), severity)


def quantized(change: Callable[[dict[str, Any]], Any], *ignore: str, **groups: Any) -> dict[str, Any]:
    document = qwen.config(*(ignore or SOUND), **groups)
    change(document["quantization_config"])
    return document


SOUND_BUILDS = [
    ("experts", qwen.config(*SOUND)),
    ("experts", qwen.config(*IGNORE, "re:^mtp.*", "lm_head")),
    ("head", qwen.config(*IGNORE, MTP, **HEAD)),
    ("head", qwen.config(*IGNORE, MTP, group_0=HEAD["group_1"], group_1=HEAD["group_0"])),
    ("shared", qwen.config(*SHARED)),
    ("nothing", qwen.CONFIG),
]


@pytest.mark.parametrize("build, document", SOUND_BUILDS)
@pytest.mark.parametrize("engines", [("vllm@0.24",), ("vllm", "sglang", "transformers")])
def test_sound_builds_pass(builds: Build, build: str, document: dict[str, Any], engines: tuple[str, ...]) -> None:
    assert rules(builds[build], document, *engines, severity="error") == []
    assert rules(builds[build], document, *engines, severity="warning") == []


DEFECTS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "no config": ("experts", qwen.CONFIG, ["C01"]),
    "status frozen": ("shared", quantized(lambda q: q.update(quantization_status="frozen"), *SHARED), ["C01"]),
    "format dense": ("experts", quantized(lambda q: q.update(format="dense")), ["C02"]),
    "dense throughout": (
        "experts",
        quantized(lambda q: (q.update(format="dense"), q["config_groups"]["group_0"].pop("format"))),
        ["C02"],
    ),
    "int-quantized": (
        "experts",
        quantized(lambda q: q["config_groups"]["group_0"].update(format="int-quantized")),
        ["C03"],
    ),
    "preset": ("experts", quantized(lambda q: q.update(config_groups={"W4A16": ["Linear"]})), ["C05"]),
    "asymmetric": (
        "experts",
        quantized(lambda q: q["config_groups"]["group_0"]["weights"].update(symmetric=False)),
        ["C05"],
    ),
    "qkv by two schemes": (
        "q",
        qwen.config(
            *IGNORE[1:], r"re:.*layers\.3\.self_attn\.[kvo]_proj", "re:.*mtp.*", "lm_head", group_0=group("Linear")
        ),
        ["C09"],
    ),
    "shared expert open": (
        "experts",
        qwen.config(*(entry for entry in SOUND if "shared" not in entry)),
        ["C07", "C15"],
    ),
    "experts ignored": ("experts", qwen.config(*SOUND, r"re:.*mlp\.experts.*"), ["C08"]),
    "no target": ("experts", qwen.config(*SOUND, group_0=group(r"re:.*self_attn.*")), ["C08"]),
    "half of in_proj": (
        "experts",
        qwen.config(SOUND[0], r"re:.*in_proj_(qkv|a|b)$", r"re:.*out_proj$", *SOUND[2:]),
        ["C09"],
    ),
    "q alone": ("q", qwen.config(*SOUND), ["C09"]),
    "expert 0 in two": ("experts", qwen.config(*SOUND, f"{LAYER}0.mlp.experts.0.up_proj"), ["C10"]),
    "one expert dense": ("but one", qwen.config(*SOUND, r"re:.*1\.mlp\.experts\.2\..*"), ["C10"]),
    "anchored": (
        "experts",
        qwen.config(*SOUND[:1], r"re:model\.language_model.*linear_attn.*", *SOUND[2:]),
        ["C11"],
    ),
    "no regex": ("experts", qwen.config(*SOUND, "re:*mtp"), ["C11"]),
    "router packed": ("router", qwen.config(*SOUND), ["C15"]),
    "vision open": ("experts", qwen.config(*NO_VISION), ["C16"]),
    "head by name": (
        "head",
        qwen.config(*IGNORE, MTP, group_0=group("Linear"), group_1=group("lm_head", bits=8)),
        ["C17"],
    ),
    "head's group taken for the experts'": (
        "head",
        qwen.config(*IGNORE, MTP, group_0=group("lm_head", "re:.*lm_head$", bits=8), group_1=group("Linear")),
        ["C17"],
    ),
    "sparsity": ("experts", quantized(lambda q: q.update(sparsity_config={"targets": ["Linear"]})), ["C18"]),
    "cache in int8": (
        "experts",
        quantized(lambda q: q.update(kv_cache_scheme=INT8_CACHE)),
        ["C18"],
    ),
    "target twice": ("experts", qwen.config(*SOUND, group_0=group("Linear"), group_1=group("Linear", bits=8)), ["C19"]),
    "head packed and ignored": ("head", qwen.config(*SOUND, **HEAD), ["C20"]),
    "head dense and open": ("experts", qwen.config(*SOUND[:-1]), ["C20"]),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_defect_is_found_by_its_rule(builds: Build, defect: str) -> None:
    build, document, expected = DEFECTS[defect]
    assert rules(builds[build], document, severity="error") == expected


@pytest.mark.parametrize(
    "defect", ["head dense and open", "asymmetric", "format dense", "shared expert open", "status frozen"]
)
def test_what_hurts_other_engines_is_not_held_against_one(builds: Build, defect: str) -> None:
    """As seen with vLLM 0.24.0: these load; the shared expert's gate is dense there whatever the config says."""
    build, document, _ = DEFECTS[defect]
    expected = ["C07"] if defect == "shared expert open" else []
    assert rules(builds[build], document, "vllm@0.24", severity="error") == expected


def test_one_cause_is_one_finding_for_all_engines(builds: Build) -> None:
    report = judge(qwen.judged(builds["experts"], qwen.config(*NO_SHARED)), only=("C07",))
    (finding,) = report.findings
    assert finding.count == 12
    assert finding.engines == ("vllm", "sglang", "transformers")
    assert finding.remedy == "ckpt ignore SRC derive"
    assert "shared_expert.gate_proj" in finding.place
    assert "'Linear'" in finding.found


def test_dense_experts_one_by_one_fail_in_transformers_alone(tmp_path: Path) -> None:
    """transformers 5.17 leaves the weights of such a layer out and draws random experts; vLLM 0.24.0 loads it."""
    owner = f"{LAYER}0.mlp.experts"
    packed_layers = pack(qwen.entries(), lambda module: qwen.body_experts(module) and not module.startswith(owner))
    split: Entries = {f"{owner}.{e}.down_proj.weight": ("BF16", (128, 64), None) for e in range(4)}
    for part in ("gate_proj", "up_proj"):
        split |= {f"{owner}.{e}.{part}.weight": ("BF16", (64, 128), None) for e in range(4)}
    fused = (f"{owner}.gate_up_proj", f"{owner}.down_proj")
    document = qwen.config(*SOUND, r"re:.*layers\.0\.mlp\.experts.*")
    checkpoint = survey(write_checkpoint(tmp_path / "model", without(packed_layers, *fused) | split, document))
    assert rules(checkpoint, document, "vllm@0.24", "sglang", severity="error") == []
    assert rules(checkpoint, document, "transformers", severity="error") == ["C07"]


def test_harmless_anchored_regex_is_a_note(builds: Build) -> None:
    document = qwen.config(*SOUND, r"re:model\.visual.*")
    assert rules(builds["experts"], document, severity="note") == ["C11"]
    assert rules(builds["experts"], document, severity="error") == []


@pytest.mark.parametrize("entry, stale", [("model.layers.9.mlp", True), ("re:.*audio.*", True), ("mtp", False)])
def test_entries_that_name_nothing_are_stale(builds: Build, entry: str, stale: bool) -> None:
    assert ("C12" in rules(builds["experts"], qwen.config(*SOUND, entry), severity="warning")) == stale


def test_open_router_is_a_warning_where_every_engine_builds_it_dense(builds: Build) -> None:
    document = qwen.config(*(entry for entry in SOUND if "gate" not in entry))
    assert rules(builds["experts"], document, severity="error") == []
    assert rules(builds["experts"], document, severity="warning") == ["C15"]


def test_uncovered_layers_are_a_warning_for_sglang(builds: Build) -> None:
    document = qwen.config("re:.*mtp.*", group_0=group(r"re:.*mlp\.experts\..*"))
    assert rules(builds["experts"], document, severity="warning") == ["C14"]
    assert rules(builds["experts"], document, "vllm", "transformers") == []


def test_shadowed_group_is_found_until_vllm_0_27(builds: Build, tmp_path: Path) -> None:
    qkv = tuple(f"3.self_attn.{part}_proj" for part in "qkv")
    select = lambda module: qwen.body_experts(module) or (module.endswith(qkv) and LAYER in module)  # noqa: E731
    checkpoint = qwen.stored(tmp_path / "model", select)
    groups = {"group_0": group("Linear"), "group_1": group(r"re:.*\.[qkv]_proj$", bits=8)}
    document = qwen.config(r"re:.*3\.self_attn\.o_proj", *IGNORE[1:], MTP, "lm_head", **groups)
    assert rules(checkpoint, document, "vllm@0.26", severity="error") == ["C06"]
    assert rules(checkpoint, document, "vllm@0.27", severity="error") == []


@pytest.mark.parametrize("size, severity", [(16, "error"), (256, "warning"), (64, None), (-1, None)])
def test_group_size_of_linear_layers_needs_a_kernel(builds: Build, size: int, severity: str | None) -> None:
    """vLLM 0.24.0 found no kernel for 16 and Triton's for 256."""
    document = quantized(lambda q: q["config_groups"]["group_0"]["weights"].update(group_size=size), *SHARED)
    report = judge(qwen.judged(builds["shared"], document, "vllm@0.24"), only=("C05",))
    assert [finding.severity for finding in report.findings] == ([severity] if severity else [])


def test_bits_other_than_4_and_8_are_read_late_or_never(builds: Build) -> None:
    document = quantized(lambda q: q["config_groups"]["group_0"]["weights"].update(num_bits=6))
    assert rules(builds["experts"], document, "vllm", severity="error") == ["C05"]
    only_head = qwen.config(*SOUND[:-1], group_0=group("Linear"), group_1=group("re:.*lm_head$", bits=6))
    assert rules(builds["head"], only_head, "vllm@0.24", severity="error") == ["C05"]
    assert rules(builds["head"], only_head, "vllm@0.26", severity="error") == []


@pytest.mark.parametrize("engine, since", [("vllm", "0.20"), ("sglang", "0.5.19")])
def test_releases_that_know_no_packed_head_are_named(builds: Build, engine: str, since: str) -> None:
    document = qwen.config(*IGNORE, MTP, **HEAD)
    before = f"{engine}@{'0.19' if engine == 'vllm' else '0.5.18'}"
    assert rules(builds["head"], document, before, severity="error") == ["L02"]
    report = judge(qwen.judged(builds["head"], document, engine), only=("L",))
    assert found(report, "error") == []
    assert any(since in fact for fact in report.facts)


def test_packed_head_with_too_few_rows_is_found(builds: Build) -> None:
    document = qwen.config(*IGNORE, MTP, **HEAD)
    document["text_config"]["vocab_size"] = 96
    assert rules(builds["head"], document, "vllm", severity="error") == ["L01"]


TIED = {
    "targets": ["Linear"],
    "format": "pack-quantized",
    "weights": {"num_bits": 4, "strategy": "group", "group_size": 64},
}


@pytest.mark.parametrize(
    "ignore, expected",
    [([], ["C20"]), (["lm_head"], []), (["re:.*lm_head$"], [])],
    ids=["open", "by name", "by pattern"],
)
def test_a_tied_head_must_be_ignored_where_linear_is_targeted(
    tmp_path: Path, ignore: list[str], expected: list[str]
) -> None:
    """transformers 5.17 builds the tied head as a Linear, packs it, and then fails to tie its missing weight."""
    entries = {"model.embed_tokens.weight": ("BF16", (128, 64), None), "model.norm.weight": ("BF16", (64,), None)}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
    }
    document = {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "quantization_config": {**quantization, "config_groups": {"group_0": TIED}, "ignore": ignore},
    }
    write_checkpoint(tmp_path, entries, config=document)
    assert found(judge(Case(survey(tmp_path)), only=("C12", "C20"))) == expected
