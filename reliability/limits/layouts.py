"""Checkpoints of any size that take no room: true headers over holes, in whatever layout is bad for a program."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checkpoint.folder import CONFIG, INDEX
from demo.sparse import tensor_bytes, write_sparse

Shapes = Mapping[str, tuple[str, Sequence[int]]]

LINEAR = {
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (64, 64), "self_attn.v_proj": (64, 64),
    "self_attn.o_proj": (64, 64), "mlp.gate_proj": (64, 64), "mlp.up_proj": (64, 64), "mlp.down_proj": (64, 64),
}  # fmt: skip

PER_LAYER = 9
"""Tensors of a dense layer."""


def config(layers: int, **more: Any) -> dict[str, Any]:
    """The config.json of a Llama of that many layers."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_size": 64,
        "intermediate_size": 64, "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 4,
        "head_dim": 16, "vocab_size": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, **more,
    }  # fmt: skip


def dense(layers: int) -> dict[str, tuple[str, Sequence[int]]]:
    """The tensors of such a Llama."""
    found: dict[str, tuple[str, Sequence[int]]] = {
        "lm_head.weight": ("BF16", (64, 64)),
        "model.embed_tokens.weight": ("BF16", (64, 64)),
        "model.norm.weight": ("BF16", (64,)),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}{norm}.weight"] = ("BF16", (64,))
        for module, shape in LINEAR.items():
            found[f"{prefix}{module}.weight"] = ("BF16", shape)
    return found


def packed(layers: int) -> dict[str, tuple[str, Sequence[int]]]:
    """The same with every Linear of the layers packed to INT4 in groups of 32."""
    found: dict[str, tuple[str, Sequence[int]]] = {}
    for name, entry in dense(layers).items():
        if name.endswith("_proj.weight"):
            rows, columns = entry[1]
            module = name.removesuffix(".weight")
            found[f"{module}.weight_packed"] = ("I32", (rows, columns // 8))
            found[f"{module}.weight_scale"] = ("BF16", (rows, columns // 32))
            found[f"{module}.weight_shape"] = ("I64", (2,))
        else:
            found[name] = entry
    return found


def scheme(*targets: str) -> dict[str, Any]:
    """A config group of INT4 in groups of 32."""
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False, "strategy": "group", "group_size": 32}
    return {"targets": list(targets), "format": "pack-quantized", "weights": weights}


def quantization(groups: Mapping[str, Any], ignore: Sequence[str]) -> dict[str, Any]:
    """A `quantization_config`."""
    head = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed"}
    return {**head, "config_groups": dict(groups), "ignore": list(ignore)}


def write(folder: Path, shapes: Shapes, config: Mapping[str, Any], shards: int = 4) -> Path:
    """A checkpoint of holes; `weight_shape` holds zeros too."""
    folder.mkdir(parents=True)
    files = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    home = {name: files[position * shards // len(shapes)] for position, name in enumerate(shapes)}
    members: dict[str, dict[str, tuple[str, Sequence[int]]]] = {}
    for name, file in home.items():
        members.setdefault(file, {})[name] = shapes[name]
    for file, held in members.items():
        write_sparse(folder / file, held)
    total = sum(tensor_bytes(dtype, shape) for dtype, shape in shapes.values())
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": home})
    write_json(folder / CONFIG, config)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    return folder


def write_json(path: Path, document: Any) -> None:
    """`document` as the Hub's tools write it."""
    path.write_text(json.dumps(document, indent=2) + "\n")


def many_groups(layers: int) -> dict[str, Any]:
    """A config with a group for each layer, by a pattern."""
    groups = {f"group_{n}": scheme(f"re:^model\\.layers\\.{n}\\..*_proj$") for n in range(layers)}
    return config(layers, quantization_config=quantization(groups, ["lm_head"]))


def many_ignored(layers: int, *, patterns: bool) -> dict[str, Any]:
    """A config that ignores every Linear one by one, by name or by a pattern."""
    names = [name.removesuffix(".weight") for name in dense(layers) if name.endswith("_proj.weight")]
    ignore = [f"re:^{re.escape(name)}$" if patterns else name for name in names]
    return config(layers, quantization_config=quantization({"group_0": scheme("Linear")}, ["lm_head", *ignore]))
