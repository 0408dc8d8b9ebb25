"""What `quantize` selects, what it refuses and how it says so, on headers alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from building import LLAMA, Entries, llama_entries, write_checkpoint, write_json, write_shard
from qwen import CONFIG, entries
from writing import change, codes, config_of, digests, drafted, tensors, written

from checkpoint import Draft, Refused, make_plan
from demo.sparse import write_sparse
from surgery import Group, Scheme, quantize

QKV = r"re:.*self_attn\.[qkv]_proj$"
GATE_UP = r"re:.*mlp\.(gate|up)_proj$"
EXPERTS = r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$"
G32 = Scheme(4, 32)


def llama(folder: Path, change: Mapping[str, Any] | None = None, /, **config: Any) -> Path:
    """A dense Llama of two layers; `change` maps a tensor to its (dtype, shape), or to None for no such tensor."""
    return _written(folder, llama_entries(), change or {}, LLAMA | config)


def moe(folder: Path, change: Mapping[str, Any] | None = None, /) -> Path:
    """A Qwen3.5-MoE of four layers with fused experts, an MTP head and a vision tower."""
    return _written(folder, entries(), change or {}, CONFIG)


def _written(folder: Path, found: Entries, change: Mapping[str, Any], config: Mapping[str, Any]) -> Path:
    found = {name: entry for name, entry in found.items() if change.get(name, entry) is not None}
    found |= {name: (*entry, None) for name, entry in change.items() if entry}
    return write_checkpoint(folder, found, config)


def packing(*targets: str, scheme: Scheme = G32, **options: Any) -> Callable[[Draft], Draft]:
    return partial(quantize, groups=[Group(targets, scheme)], **options)


def packed(draft: Draft) -> set[str]:
    return {name.removesuffix(".weight_packed") for name in draft.tensors if name.endswith(".weight_packed")}


def ignored(draft: Draft) -> list[str]:
    found: list[str] = draft.config.value["quantization_config"]["ignore"]
    return found


def message(draft: Draft, code: str) -> str:
    (problem,) = [problem for problem in draft.problems if problem.code == code]
    return str(problem)


# what is selected


def test_linear_covers_every_linear_layer_but_the_head(tmp_path: Path) -> None:
    draft = drafted(llama(tmp_path / "a"), packing("Linear"))
    leaves = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    assert packed(draft) == {f"model.layers.{layer}.{leaf}" for layer in (0, 1) for leaf in leaves}
    assert ignored(draft) == [r"re:.*lm_head$"]


def test_the_first_group_that_covers_a_module_decides(tmp_path: Path) -> None:
    groups = [Group((r"re:.*layers\.0\.", "lm_head"), Scheme(8, None)), Group((r"re:.*_proj$",), G32)]
    draft = drafted(llama(tmp_path / "a"), partial(quantize, groups=groups, ignore=[r"re:.*norm"]))
    assert codes(draft) == []
    widths = {module: draft.tensors[f"{module}.weight_packed"].shape[1] for module in packed(draft)}
    assert widths["lm_head"] == widths["model.layers.0.self_attn.q_proj"] == 128 * 8 // 32
    assert widths["model.layers.1.self_attn.q_proj"] == 128 * 4 // 32
    assert list(draft.config.value["quantization_config"]["config_groups"]) == ["group_0", "group_1"]


def test_ignore_wins_over_targets_and_is_written_in_entries_that_engines_read(tmp_path: Path) -> None:
    ignore = [r"re:model\.layers\.1\.", "lm_head"]
    draft = drafted(llama(tmp_path / "a"), packing("Linear", ignore=ignore))
    assert all(".layers.0." in module for module in packed(draft))
    assert ignored(draft) == [r"re:.*lm_head$", r"re:.*layers\.1\..*"]


def test_literal_targets_name_whole_modules(tmp_path: Path) -> None:
    draft = drafted(llama(tmp_path / "a"), packing("model.layers.0.self_attn.o_proj"))
    assert packed(draft) == {"model.layers.0.self_attn.o_proj"}


def test_fused_experts_are_taken_apart_where_packed_and_keep_their_layout_elsewhere(tmp_path: Path) -> None:
    draft = drafted(moe(tmp_path / "a"), packing(EXPERTS, ignore=["re:mtp.*"]))
    assert codes(draft) == []
    assert "model.language_model.layers.0.mlp.experts.gate_up_proj" not in draft.tensors
    assert "model.language_model.layers.0.mlp.experts.3.up_proj.weight_packed" in draft.tensors
    assert draft.tensors["mtp.layers.0.mlp.experts.gate_up_proj"].shape == (4, 128, 128)
    attention_only = drafted(moe(tmp_path / "b"), packing(r"re:.*self_attn\..*_proj$"))
    assert "model.language_model.layers.0.mlp.experts.gate_up_proj" in attention_only.tensors


def test_dense_experts_beside_packed_ones_are_taken_apart_too(tmp_path: Path) -> None:
    """SGLang skips single experts of a model once it has met a fused parameter in it."""
    source = moe(tmp_path / "a", {"lm_head.weight": ("BF16", (64, 128))})
    rows = torch_pattern(source, "model.language_model.layers.1.mlp.experts.gate_up_proj", (4, 128, 128))
    out = written(source, tmp_path / "out", packing(EXPERTS, ignore=[r"re:.*layers\.1\.mlp", "re:mtp.*"]))
    found = tensors(out)
    owner = "model.language_model.layers.1.mlp.experts"
    assert f"{owner}.gate_up_proj" not in found
    assert found[f"{owner}.2.gate_proj.weight"].equal(rows[2, :64])
    assert found[f"{owner}.2.up_proj.weight"].equal(rows[2, 64:])
    assert found[f"{owner}.3.down_proj.weight"].shape == (128, 64)
    assert "mtp.layers.0.mlp.experts.gate_up_proj" in found
    assert r"re:.*layers\.1\..*" in config_of(out)["quantization_config"]["ignore"]


def torch_pattern(source: Path, name: str, shape: tuple[int, ...]) -> Any:
    """Give the tensor values that tell rows and experts apart; returns them."""
    torch = pytest.importorskip("torch")
    values = torch.arange(torch.Size(shape).numel()).view(shape).bfloat16()
    change(source, lambda state: state.update({name: values}), holding=name)
    return values


def test_a_family_that_is_unknown_is_packed_by_names(tmp_path: Path) -> None:
    source = llama(tmp_path / "a", model_type="nonesuch")
    draft = drafted(source, packing(r"re:.*_proj$"))
    assert codes(draft) == []
    assert len(packed(draft)) == 14
    assert ignored(draft) == [r"re:.*lm_head$"]


def test_a_projection_may_be_left_alone_where_no_engine_fuses_it(tmp_path: Path) -> None:
    draft = drafted(llama(tmp_path / "a"), packing(r"re:.*(o|down)_proj$"))
    assert codes(draft) == []


# what is refused: case -> (change of tensors, operation, code, words of the message)

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


# what only the data can tell


def test_weights_that_are_not_finite_are_refused_together_and_nothing_is_left(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    source = llama(tmp_path / "a")
    for name, value in (("model.layers.0.mlp.up_proj", "nan"), ("model.layers.1.self_attn.k_proj", "inf")):
        spoiled = partial(_spoil, name=f"{name}.weight", value=float(value))
        change(source, spoiled, holding=f"{name}.weight")
    assert torch.isnan(tensors(source)["model.layers.0.mlp.up_proj.weight"]).any()
    before = digests(source)
    with pytest.raises(Refused) as refusal:
        written(source, tmp_path / "out", packing("Linear"))
    assert {(problem.code, problem.tensor) for problem in refusal.value.problems} == {
        ("not-finite", "model.layers.0.mlp.up_proj.weight"),
        ("not-finite", "model.layers.1.self_attn.k_proj.weight"),
    }
    assert "model-00001-of-00002.safetensors: model.layers.0.mlp.up_proj.weight: holds NaN" in str(refusal.value)
    assert digests(source) == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def _spoil(state: dict[str, Any], name: str, value: float) -> None:
    state[name][3, 7] = value


def test_the_fault_of_a_fused_expert_is_told_by_the_experts_name(tmp_path: Path) -> None:
    source = moe(tmp_path / "a")
    name = "model.language_model.layers.2.mlp.experts.gate_up_proj"
    change(source, lambda state: state[name][1, 64:].fill_(float("nan")), holding=name)
    with pytest.raises(Refused) as refusal:
        written(source, tmp_path / "out", packing(EXPERTS))
    (problem,) = refusal.value.problems
    assert problem.tensor == "model.language_model.layers.2.mlp.experts.1.up_proj.weight"


def test_a_plan_reads_no_weights(tmp_path: Path) -> None:
    """A header with nothing behind it is enough: the replica's 72 GB are holes on the disk."""
    source = llama(tmp_path / "a")
    draft = drafted(source, packing("Linear"))
    for shard in source.glob("*.safetensors"):
        shard.unlink()
    assert make_plan(draft).bytes_read > 0


# memory


def test_memory_is_bounded_by_blocks_not_by_the_shard(tmp_path: Path) -> None:
    """A head of 500 MB in one shard, quantized with buffers of a few MB beside the interpreter and torch."""
    pytest.importorskip("torch")
    source = huge_head(tmp_path / "a", rows=122_000)
    small, large = peak_rss(huge_head(tmp_path / "b", rows=2_000), tmp_path / "c"), peak_rss(source, tmp_path / "d")
    assert large - small < 120 * 1024**2


def huge_head(folder: Path, rows: int) -> Path:
    """A checkpoint with one shard, which holds a head of [rows, 2048] zeros and an embedding like it."""
    folder.mkdir()
    shape = [rows, 2048]
    write_sparse(
        folder / "model.safetensors", {"lm_head.weight": ("BF16", shape), "model.embed.weight": ("BF16", shape)}
    )
    write_json(folder / "config.json", {"model_type": "nonesuch"})
    return folder


def peak_rss(source: Path, out: Path) -> int:
    """Bytes of memory that a process of its own reaches which quantizes the head of `source`."""
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from checkpoint import Draft, apply_plan, open_checkpoint, plan_for\n"
        "from surgery import Group, Scheme, quantize\n"
        "source, out = map(Path, sys.argv[1:])\n"
        "draft = quantize(Draft.of(open_checkpoint(source)), [Group(('lm_head',), Scheme(8, 128))])\n"
        "apply_plan(plan_for(draft, out), out, workers=2)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, source, out], capture_output=True, text=True, check=True)
    shutil.rmtree(out)
    return int(run.stdout)
