"""The layout document: it says what is stored, of real checkpoints packed by compressed-tensors itself."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkpoint import UnreadableCheckpoint, open_checkpoint
from checkpoint.folding import unfold
from checkpoint.layout import layout
from demo.shards import read_shards, save_sharded
from schemas import validate

if TYPE_CHECKING:
    import torch

State = dict[str, "torch.Tensor"]

EXPERTS = r".*\.mlp\.experts\.\d+\.(gate|up|down)_proj"
BODY = (
    rf"model\..*(\.mlp\.shared_expert\.\w+_proj|\.self_attn\.[qkvo]_proj|\.in_proj_(qkv|z)|\.out_proj)|model\.{EXPERTS}"
)


def args(bits: int, group_size: int | None, **more: Any) -> dict[str, Any]:
    strategy = {"strategy": "group", "group_size": group_size} if group_size else {"strategy": "channel"}
    return {"num_bits": bits, "type": "int", "symmetric": True, **strategy, **more}


def pack(weight: torch.Tensor, scheme: Mapping[str, Any]) -> State:
    """The tensors compressed-tensors stores for `weight`, rounded to nearest by its own arithmetic."""
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    weights = QuantizationArgs(**scheme)
    groups = weight.reshape(len(weight), -1, scheme.get("group_size") or weight.shape[-1])
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), weights)
    state = {"weight": weight, "weight_scale": scale}
    if not weights.symmetric:
        state["weight_zero_point"] = zero.to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    packed: State = compressor.compress(state, QuantizationScheme(targets=["Linear"], weights=weights))
    return packed


def modules_of(base: Path, split: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of `base`, fused experts whose name matches `split` taken apart into modules."""
    for _, tensors in read_shards(base):
        for name, tensor in tensors.items():
            owner, _, leaf = name.rpartition(".")
            if leaf not in ("gate_up_proj", "down_proj") or not re.match(split, name):
                yield name, tensor
                continue
            for expert, matrix in enumerate(tensor):
                parts = zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True) if leaf != "down_proj" else ()
                for part, rows in parts or [(leaf, matrix)]:
                    yield f"{owner}.{expert}.{part}.weight", rows.contiguous()


def export(base: Path, out: Path, schemes: Mapping[str, Mapping[str, Any]], split: str, config: Any = None) -> Path:
    """A copy of `base` in which modules that fully match a key of `schemes` are packed so; two shards."""
    shutil.copytree(base, out, ignore=shutil.ignore_patterns("*.safetensors*"))
    state: State = {}
    for name, tensor in modules_of(base, split):
        module = name.removesuffix(".weight")
        scheme = next((args for pattern, args in schemes.items() if re.fullmatch(pattern, module)), None)
        stored = pack(tensor, scheme) if scheme else None
        state |= {f"{module}.{suffix}": part for suffix, part in stored.items()} if stored else {name: tensor}
    shard_of = {name: f"model-{'mtp' in name:d}.safetensors" for name in state}
    save_sharded(out, state, shard_of)
    groups = {f"group_{i}": {"targets": [f"re:{p}"], "weights": dict(a)} for i, (p, a) in enumerate(schemes.items())}
    quantization = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    document = json.loads((out / "config.json").read_text())
    document["quantization_config"] = quantization | {"ignore": ["re:.*mtp.*"]} | (config or {})
    (out / "config.json").write_text(json.dumps(document))
    return out


@pytest.fixture(scope="module")
def experts_int4(qwen_moe_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("layout") / "experts-int4-g32"
    return export(qwen_moe_base, out, {EXPERTS: args(4, 32)}, split=".*")


@pytest.fixture(scope="module")
def body_int4(qwen_moe_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("layout") / "body-int4-g128"
    return export(qwen_moe_base, out, {BODY: args(4, 128), "lm_head": args(8, 128)}, split="model")


def document_of(folder: Path, **options: Any) -> dict[str, Any]:
    """The layout of a folder, which always satisfies the layout schema."""
    document = layout(open_checkpoint(folder), **options)
    assert json.loads(json.dumps(document)) == document
    assert validate(document, "layout") == []
    return document


def entry_of(document: dict[str, Any], module: str) -> dict[str, Any]:
    found = [entry for pattern, entry in document["modules"].items() if module in unfold(pattern)]
    assert len(found) == 1
    entry: dict[str, Any] = found[0]
    return entry


def with_config(source: Path, out: Path, **weights: Any) -> Path:
    """A copy of a packed checkpoint whose first config group says something else of its weights."""
    shutil.copytree(source, out)
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"] |= weights
    (out / "config.json").write_text(json.dumps(config))
    return out


def test_the_published_35b_in_a_page(replica: Path) -> None:
    """Counts and bytes of Qwen3.6-35B-A3B as its index and headers state them."""
    document = document_of(replica)
    assert document["family"] == "qwen3_5_moe"
    assert document["architectures"] == ["Qwen3_5MoeForConditionalGeneration"]
    assert document["tied"] is False
    assert document["quantization"] is None
    assert document["totals"]["bytes"] == 71_903_645_408
    assert document["totals"]["tensors"] == 1045
    assert document["totals"]["packed_modules"] == 0
    assert len(document["shards"]) == 26
    assert len(document["modules"]) < 60
    assert document["modules"]["model.language_model.layers.{0-39}.mlp.experts.gate_up_proj"] == {
        "state": "dense",
        "kind": "expert",
        "dtype": "BF16",
        "shape": [256, 1024, 2048],
        "count": 40,
        "bytes": 40 * 256 * 1024 * 2048 * 2,
    }


def test_entries_account_for_every_module_and_every_byte(experts_int4: Path) -> None:
    document, checkpoint = document_of(experts_int4), open_checkpoint(experts_int4)
    names = [name for pattern in document["modules"] for name in unfold(pattern)]
    owners = {re.sub(r"\.(weight\w*|bias)$", "", name) for name in checkpoint.tensors}
    assert sorted(names) == sorted(owners)
    assert sum(entry["count"] for entry in document["modules"].values()) == document["totals"]["modules"]
    assert sum(entry["bytes"] for entry in document["modules"].values()) == checkpoint.nbytes
    assert document["shards"] == {
        path.name: {"bytes": path.stat().st_size, "tensors": len(tensors)}
        for path, tensors in read_shards(experts_int4)
    }


def test_packed_experts_share_an_entry_that_states_their_scheme(experts_int4: Path) -> None:
    document = document_of(experts_int4)
    assert document["modules"]["model.language_model.layers.{0-3}.mlp.experts.{0-7}.gate_proj"] == {
        "state": "packed",
        "kind": "expert",
        "shape": [256, 256],
        "bits": 4,
        "strategy": "group",
        "group_size": 32,
        "symmetric": True,
        "scale_dtype": "BF16",
        "count": 32,
        "bytes": 32 * (256 * 256 // 2 + 256 * 8 * 2 + 16),
    }


@pytest.mark.parametrize(("folder", "profile"), [("experts_int4", "experts-int4-g32"), ("body_int4", "body-int4-g128")])
def test_real_builds_satisfy_their_profile_and_not_the_other(
    folder: str, profile: str, request: pytest.FixtureRequest
) -> None:
    document = document_of(request.getfixturevalue(folder))
    (other,) = {"experts-int4-g32", "body-int4-g128"} - {profile}
    assert validate(document, f"profiles/{profile}") == []
    assert validate(document, f"profiles/{other}")


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (args(4, 128), {"bits": 4, "strategy": "group", "group_size": 128, "symmetric": True}),
        (args(8, 64), {"bits": 8, "strategy": "group", "group_size": 64, "symmetric": True}),
        (args(8, None), {"bits": 8, "strategy": "channel", "group_size": None, "symmetric": True}),
        (args(4, 32, symmetric=False), {"bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}),
        (args(3, 128), {"bits": 3, "strategy": "group", "group_size": 128, "symmetric": True}),
        (args(4, 256), {"bits": 4, "strategy": "group", "group_size": 256, "symmetric": True}),
    ],
)
def test_the_scheme_is_read_off_the_stored_shapes(
    scheme: dict[str, Any], expected: dict[str, Any], qwen_moe_base: Path, tmp_path: Path
) -> None:
    folder = export(qwen_moe_base, tmp_path / "out", {"lm_head": scheme}, split="none")
    head = entry_of(document_of(folder), "lm_head")
    assert {key: head[key] for key in expected} == expected
    assert head["shape"] == [512, 256]


def test_what_is_stored_wins_over_what_the_config_claims(body_int4: Path, tmp_path: Path) -> None:
    folder = with_config(body_int4, tmp_path / "claims", num_bits=8, group_size=32, symmetric=False)
    entry = entry_of(document_of(folder), "model.language_model.layers.3.self_attn.q_proj")
    assert (entry["bits"], entry["group_size"], entry["symmetric"]) == (4, 128, True)
    assert entry["shape"] == [512, 256]


def test_without_a_family_the_config_decides_what_the_shapes_leave_open(body_int4: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(body_int4, tmp_path / "unknown")
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "unheard_of"}
    (folder / "config.json").write_text(json.dumps(config))
    document = document_of(folder)
    entry = entry_of(document, "model.language_model.layers.3.self_attn.q_proj")
    assert document["family"] is None
    assert (entry["bits"], entry["group_size"], entry["shape"], entry["kind"]) == (4, 128, [512, 256], None)
    assert entry_of(document, "lm_head")["bits"] == 8


def test_a_group_for_linear_covers_what_no_other_group_names(body_int4: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(body_int4, tmp_path / "linear")
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "unheard_of"}
    config["quantization_config"]["config_groups"]["group_0"]["targets"] = ["Linear"]
    (folder / "config.json").write_text(json.dumps(config))
    document = document_of(folder)
    assert entry_of(document, "model.language_model.layers.3.self_attn.q_proj")["bits"] == 4
    assert entry_of(document, "lm_head")["bits"] == 8


def test_with_neither_family_nor_groups_nothing_is_guessed(body_int4: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(body_int4, tmp_path / "bare")
    (folder / "config.json").unlink()
    document = document_of(folder)
    head = entry_of(document, "lm_head")
    assert (head["bits"], head["group_size"], head["shape"]) == (None, None, [512, None])
    assert document["model_type"] is None
    assert document["quantization"] is None


def rewritten(source: Path, out: Path, drop: str = "", add: State | None = None) -> Path:
    """A copy of a checkpoint without the tensor `drop` and with the tensors `add`."""
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("*.safetensors*"))
    state = {name: tensor for _, tensors in read_shards(source) for name, tensor in tensors.items() if name != drop}
    state |= add or {}
    save_sharded(out, state, dict.fromkeys(state, "model-1.safetensors"))
    return out


def test_a_module_that_lacks_its_scale_says_so(body_int4: Path, tmp_path: Path) -> None:
    document = document_of(rewritten(body_int4, tmp_path / "out", drop="lm_head.weight_scale"))
    head = entry_of(document, "lm_head")
    assert head["missing"] == ["weight_scale"]
    assert (head["state"], head["strategy"], head["scale_dtype"]) == ("packed", None, None)


def test_a_module_stored_twice_or_not_at_all_is_neither_dense_nor_packed(body_int4: Path, tmp_path: Path) -> None:
    import torch

    module = "model.language_model.layers.3.self_attn.q_proj"
    extra = {"lm_head.weight": torch.zeros(512, 256, dtype=torch.bfloat16)}
    document = document_of(rewritten(body_int4, tmp_path / "out", drop=f"{module}.weight_packed", add=extra))
    assert entry_of(document, "lm_head")["state"] == "mixed"
    assert entry_of(document, module)["state"] == "orphan"
    assert entry_of(document, module)["missing"] == ["weight_packed"]


def test_a_scale_beside_a_dense_weight_is_shown(qwen_moe_base: Path, tmp_path: Path) -> None:
    import torch

    folder = rewritten(qwen_moe_base, tmp_path / "out", add={"lm_head.weight_scale": torch.ones(512, 1)})
    head = entry_of(document_of(folder), "lm_head")
    assert (head["state"], head["beside"]) == ("dense", ["weight_scale"])


def test_lists_in_the_config_are_folded_and_expressions_kept(qwen_moe_base: Path, tmp_path: Path) -> None:
    ignore = ["lm_head", "re:.*mtp.*"] + [f"model.visual.blocks.{block}.attn.qkv" for block in range(27)]
    folder = export(qwen_moe_base, tmp_path / "out", {EXPERTS: args(4, 32)}, split=".*", config={"ignore": ignore})
    quantization = document_of(folder)["quantization"]
    assert quantization["ignore"] == ["re:.*mtp.*", "lm_head", "model.visual.blocks.{0-26}.attn.qkv"]
    assert quantization["config_groups"]["group_0"]["targets"] == [f"re:{EXPERTS}"]
    assert quantization["config_groups"]["group_0"]["weights"]["group_size"] == 32


def test_side_files_are_hashed_on_request_only(qwen_moe_base: Path) -> None:
    plain, hashed = document_of(qwen_moe_base), document_of(qwen_moe_base, hashes=True)
    path = qwen_moe_base / "generation_config.json"
    assert plain["side_files"][path.name] == {"bytes": path.stat().st_size}
    assert hashed["side_files"][path.name]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "config.json" not in plain["side_files"]


def test_a_side_file_that_vanished_is_reported(qwen_moe_base: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen_moe_base, tmp_path / "out")
    checkpoint = open_checkpoint(folder)
    (folder / "generation_config.json").unlink()
    with pytest.raises(UnreadableCheckpoint, match=r"generation_config\.json"):
        layout(checkpoint)


def test_f32_state_stands_apart_from_bf16(qwen_moe_f32_base: Path) -> None:
    document = document_of(qwen_moe_f32_base)
    assert entry_of(document, "model.language_model.layers.0.linear_attn.A_log")["dtype"] == "F32"
    assert entry_of(document, "model.language_model.layers.0.linear_attn.dt_bias")["dtype"] == "BF16"


def test_a_tied_dense_model_of_another_family(smollm2_base: Path) -> None:
    document = document_of(smollm2_base)
    assert (document["family"], document["tied"]) == ("llama", True)
    assert document["modules"]["model.layers.{0-29}.mlp.up_proj"]["shape"] == [1536, 576]
