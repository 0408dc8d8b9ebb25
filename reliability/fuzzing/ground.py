"""Two small sound checkpoints, so that what a stranger's document says is held against something.

One is a dense Llama, one a mixture of experts with vision tower and MTP head; the linear layers of both are packed.
Contents are zeros: nothing here reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from checkpoint.families import load_family
from reliability.fuzzing.target import place

INDEX = "model.safetensors.index.json"
WIDTHS = {"BF16": 2, "I32": 4, "I64": 8}

Shapes = dict[str, tuple[str, tuple[int, ...]]]

PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "format": "pack-quantized",
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "dynamic": False,
                "strategy": "group",
                "group_size": 32,
            },
        }
    },
    "ignore": ["lm_head", "re:.*norm.*", "re:^mtp.*", "re:.*mtp.*", "re:.*visual.*", r"re:.*\.mlp\.gate$"],
}

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 64,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "quantization_config": PACKED,
}

QWEN: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "full_attention_interval": 2,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_num_value_heads": 2,
        "linear_value_head_dim": 32,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "num_experts": 2,
        "num_experts_per_tok": 2,
        "mtp_num_hidden_layers": 1,
        "vocab_size": 64,
    },
    "quantization_config": PACKED,
}


@cache
def dense(user: str) -> Path:
    """The Llama, in a folder that `user` alone may change."""
    return written(place() / f"llama-{user}", LLAMA)


@cache
def experts(user: str) -> Path:
    """The mixture of experts, likewise."""
    return written(place() / f"qwen-{user}", QWEN)


def written(folder: Path, config: Mapping[str, Any], *, packed: bool = True) -> Path:
    """What `config` calls for, in two shards, experts one by one, and packed unless they shall not be."""
    folder.mkdir()
    shapes = dict(_stored(config, packed))
    names = list(shapes)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in shards.items():
        (folder / file).write_bytes(shard({name: shapes[name] for name in held}))
    total = sum(WIDTHS[dtype] * prod(shape) for dtype, shape in shapes.values())
    index = {"metadata": {"total_size": total}, "weight_map": {n: file for file, held in shards.items() for n in held}}
    documents = {INDEX: index, "config.json": config, "generation_config.json": {"eos_token_id": 2}}
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2))
    return folder


def shard(shapes: Shapes) -> bytes:
    """A safetensors file of zeros."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape) in shapes.items():
        end = position + WIDTHS[dtype] * prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(position)


def _stored(config: Mapping[str, Any], packed: bool) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    family = load_family(str(config["model_type"]))
    spec = family.spec(config)
    for name, tensor in spec.tensors(dict.fromkeys(spec.layouts, "per_expert")).items():
        module = name.removesuffix(".weight")
        if packed and tensor.kind in ("linear", "expert") and len(tensor.shape) == 2 and not name.startswith("mtp."):
            rows, columns = tensor.shape
            yield f"{module}.weight_packed", ("I32", (rows, columns // 8))
            yield f"{module}.weight_scale", ("BF16", (rows, columns // 32))
            yield f"{module}.weight_shape", ("I64", (2,))
        else:
            yield name, ("BF16", tensor.shape)
