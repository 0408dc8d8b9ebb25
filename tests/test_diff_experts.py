"""Experts that one checkpoint fuses and the other keeps apart, dense or packed: matched one by one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("compressed_tensors")

from building import write_json  # noqa: E402
from differing import decompressed, expected, found, lone, measured, states, tensors  # noqa: E402
from exporting import QWEN  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from compare import compare  # noqa: E402
from verify import compiled  # noqa: E402


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As large checkpoints are compared."""
    monkeypatch.setattr(compiled, "WORTH", 0)


def test_exports_by_llm_compressor_are_measured_with_their_fused_experts(packed_moe: Path, qwen_moe_base: Path) -> None:
    result = compare(qwen_moe_base, packed_moe)
    base, state, sums = tensors(qwen_moe_base), tensors(packed_moe), measured(result)
    assert len(sums) == 96
    for layer, expert in ((0, 0), (1, 5), (3, 7)):
        owner = f"{QWEN}{layer}.mlp.experts."
        gate, up = base[f"{owner}gate_up_proj"][expert].chunk(2)
        parts = {"gate_proj": gate, "up_proj": up, "down_proj": base[f"{owner}down_proj"][expert]}
        for part, weight in parts.items():
            name = f"{owner}{expert}.{part}.weight"
            after = decompressed(state, name.removesuffix(".weight"))
            assert found(sums[name]) == pytest.approx(expected(weight, after), rel=1e-6)
    assert {entry.state for entry in result.entries if entry.name not in sums} == {"equal"}
    assert (result.removed, result.added) == ((), ())


def test_dense_experts_are_equal_whichever_side_fuses_them(qwen_moe_base: Path, packed_moe: Path) -> None:
    """llm-compressor takes those of the draft head apart, which it leaves dense."""
    name = "mtp.layers.0.mlp.experts.3.up_proj.weight"
    for one, other in ((qwen_moe_base, packed_moe), (packed_moe, qwen_moe_base)):
        result = compare(one, other)
        assert states(result)[name] == "equal"
        assert (result.removed, result.added) == ((), ())


def test_experts_of_an_unknown_family_are_matched_by_name_alone(tmp_path: Path) -> None:
    weight = torch.randn(2, 64, 32).to(torch.bfloat16)
    fused = lone(tmp_path / "a", {"layers.0.experts.gate_up_proj": weight}, {"model_type": "unheard"})
    parts = {
        f"layers.0.experts.{expert}.{part}.weight": half.clone()
        for expert in range(2)
        for part, half in zip(("gate_proj", "up_proj"), weight[expert].chunk(2), strict=True)
    }
    result = compare(fused, lone(tmp_path / "b", parts, {"model_type": "unheard"}))
    assert [one.name for one in result.removed] == ["layers.0.experts.gate_up_proj"]
    assert {one.name for one in result.added} == set(parts)


def test_experts_that_are_missing_from_one_side_are_named(
    qwen_moe_base: Path, packed_moe: Path, tmp_path: Path
) -> None:
    gone = f"{QWEN}1.mlp.experts.2.up_proj"
    folder = shutil.copytree(packed_moe, tmp_path / "out")
    for shard in folder.glob("*.safetensors"):
        state = {name: tensor for name, tensor in load_file(shard).items() if not name.startswith(gone)}
        save_file(state, shard, metadata={"format": "pt"})
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"] = {k: v for k, v in document["weight_map"].items() if not k.startswith(gone)}
    write_json(index, document)
    result = compare(qwen_moe_base, folder)
    assert [one.name for one in result.removed] == [f"{gone}.weight"]
