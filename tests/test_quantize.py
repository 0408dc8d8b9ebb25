"""What `quantize` selects and writes, and what only the data can tell it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from building import write_json
from packing import EXPERTS, G32, llama, moe, packing
from writing import change, codes, config_of, digests, drafted, tensors, written

from checkpoint import Draft, Refused, make_plan
from demo.sparse import write_sparse
from surgery import Group, Scheme, quantize


def packed(draft: Draft) -> set[str]:
    return {name.removesuffix(".weight_packed") for name in draft.tensors if name.endswith(".weight_packed")}


def ignored(draft: Draft) -> list[str]:
    found: list[str] = draft.config.value["quantization_config"]["ignore"]
    return found


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


def test_the_head_is_targeted_in_the_spelling_that_every_engine_reads(tmp_path: Path) -> None:
    """vLLM calls it `language_model.lm_head` in the main model and `lm_head` in the draft."""
    draft = drafted(llama(tmp_path / "a"), packing("lm_head"))
    groups = draft.config.value["quantization_config"]["config_groups"]
    assert groups["group_0"]["targets"] == [r"re:.*lm_head$"]


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
    """A head of 250 MB in one shard, quantized with buffers of a few MB beside the interpreter and torch."""
    pytest.importorskip("torch")
    source = huge_head(tmp_path / "a", rows=61_000)
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
