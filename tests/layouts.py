"""Layout documents: of two published builds, written by hand, and of what operations plan, at any size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from checkpoint import Draft, make_plan, open_checkpoint
from checkpoint.layout import layout
from demo.sparse import write_sparse

DROP: Any = object()
"""Stands for an entry that is not there."""


def packed(bits: int, group_size: int, **changes: Any) -> dict[str, Any]:
    entry = {
        "state": "packed",
        "kind": "linear",
        "shape": [512, 2048],
        "bits": bits,
        "strategy": "group",
        "group_size": group_size,
        "symmetric": True,
        "scale_dtype": "BF16",
        "count": 1,
        "bytes": 1,
    }
    return entry | changes


def dense(**changes: Any) -> dict[str, Any]:
    return {"state": "dense", "kind": "linear", "dtype": "BF16", "shape": [64, 64], "count": 1, "bytes": 1} | changes


LAYERS = "model.language_model.layers.{0-39}."
GDN = "model.language_model.layers.{0-2,4-6}.linear_attn."
ATTENTION = "model.language_model.layers.{3,7}.self_attn."
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
DENSE_ANYWAY = [
    "lm_head",
    "model.language_model.embed_tokens",
    "model.language_model.norm",
    f"{LAYERS}input_layernorm",
    f"{LAYERS}mlp.gate",
    f"{LAYERS}mlp.shared_expert_gate",
    *(f"{GDN}{leaf}" for leaf in ("in_proj_a", "in_proj_b", "conv1d", "dt_bias", "norm")),
    *(f"{ATTENTION}{leaf}" for leaf in ("q_norm", "k_norm")),
    "model.visual.blocks.{0-26}.attn.qkv",
    "model.visual.blocks.{0-26}.attn.proj",
    "mtp.fc",
    "mtp.layers.0.self_attn.q_proj",
    "mtp.layers.0.mlp.gate",
    "mtp.layers.0.mlp.shared_expert.up_proj",
]
LINEAR_BODY = [
    *(f"{LAYERS}mlp.shared_expert.{leaf}" for leaf in PROJECTIONS),
    *(f"{ATTENTION}{leaf}" for leaf in ("q_proj", "k_proj", "v_proj", "o_proj")),
    *(f"{GDN}{leaf}" for leaf in ("in_proj_qkv", "in_proj_z", "out_proj")),
]
BODY_EXPERTS = [f"{LAYERS}mlp.experts.{{0-255}}.{leaf}" for leaf in PROJECTIONS]
MTP_EXPERTS = [f"mtp.layers.0.mlp.experts.{{0-255}}.{leaf}" for leaf in PROJECTIONS]
STATE = {f"{GDN}A_log": dense(dtype="F32", kind="state")}


def layout_of(modules: dict[str, Any], *groups: tuple[int, int]) -> dict[str, Any]:
    """A layout document written by hand, with one config group for each (bits, group size)."""
    stated = {
        f"group_{number}": {"targets": ["Linear"], "weights": {"num_bits": bits, "group_size": size}}
        for number, (bits, size) in enumerate(groups)
    }
    return {
        "family": "qwen3_5_moe",
        "model_type": "qwen3_5_moe",
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "tied": False,
        "totals": {"bytes": 1, "tensors": 1, "modules": 1, "packed_modules": 1, "shards": 1},
        "modules": {name: entry for name, entry in modules.items() if entry is not DROP},
        "quantization": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": stated,
            "ignore": ["re:.*mtp.*"],
        },
        "shards": {"model-00001-of-00001.safetensors": {"bytes": 1, "tensors": 1}},
        "side_files": {"tokenizer.json": {"bytes": 1, "sha256": "0" * 64}},
    }


def experts_only(**changes: Any) -> dict[str, Any]:
    """The experts-only build, with entries changed by module name; DROP removes one."""
    modules = dict.fromkeys([*DENSE_ANYWAY, *LINEAR_BODY], dense()) | STATE
    return layout_of(modules | dict.fromkeys(BODY_EXPERTS + MTP_EXPERTS, packed(4, 32)) | changes, (4, 32))


def full_body(**changes: Any) -> dict[str, Any]:
    """The full-body build with a dense head and a fused MTP head, changed likewise."""
    modules = dict.fromkeys(DENSE_ANYWAY, dense()) | STATE
    modules |= dict.fromkeys(["mtp.layers.0.mlp.experts.gate_up_proj", "mtp.layers.0.mlp.experts.down_proj"], dense())
    return layout_of(modules | dict.fromkeys(BODY_EXPERTS + LINEAR_BODY, packed(4, 128)) | changes, (4, 128))


def planned_layout(draft: Draft, folder: Path) -> dict[str, Any]:
    """The layout of what `draft` would make, which is written to `folder` by names and shapes, without data."""
    plan = make_plan(draft)
    folder.mkdir()
    for shard in plan.shards:
        held = shard.tensors or draft.origin.shards[shard.was or ""].tensors
        write_sparse(folder / shard.name, {name: (source.dtype, source.shape) for name, source in held.items()})
    (folder / "config.json").write_text(json.dumps(draft.config.value))
    if plan.index is not None:
        (folder / "model.safetensors.index.json").write_text(plan.index.text)
    return layout(open_checkpoint(folder))
