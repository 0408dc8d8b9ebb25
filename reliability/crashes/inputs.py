"""Small checkpoints for runs by the thousand: a mixture of experts with MTP head, and what exporters make of it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from checkpoint.families import load_family
from checkpoint.folder import CONFIG, INDEX
from demo.qwen_files import write_side_files
from reliability.forking import ckpt

SHARDS = 4

QWEN: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "hidden_size": 128,
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
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "num_experts": 2,
        "num_experts_per_tok": 2,
        "mtp_num_hidden_layers": 1,
        "vocab_size": 512,
    },
}

RECIPE = """\
calibration:
  sequences: 2
  min_tokens: 1
  sources:
    - {file: talk.jsonl, share: 100}
"""


def write_base(folder: Path, seed: int = 0, keep: Callable[[str], bool] = lambda name: True) -> Path:
    """The checkpoint that `QWEN` calls for, of those tensors that are to be kept, in a few shards."""
    folder.mkdir()
    shapes = load_family("qwen3_5_moe").spec(QWEN).tensors()
    kept = {name: tensor.shape for name, tensor in shapes.items() if keep(name)}
    files = [f"model-{number:05d}-of-{SHARDS:05d}.safetensors" for number in range(1, SHARDS + 1)]
    home = {name: files[position * SHARDS // len(kept)] for position, name in enumerate(kept)}
    for file in files:
        _write_shard(folder / file, {name: kept[name] for name in kept if home[name] == file}, seed)
    total = sum(2 * prod(shape) for shape in kept.values())
    _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": home})
    _write_json(folder / CONFIG, QWEN)
    _write_json(folder / "generation_config.json", {"eos_token_id": 480})
    write_side_files(folder)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return folder


def prepare(room: Path) -> Path:
    """All that the cases need, in the new folder `room`: `base`, `other`, `export`, `headless`, `linked`, texts."""
    room.mkdir(parents=True)
    base = write_base(room / "base")
    write_base(room / "other", 1)
    bodiless = write_base(room / "bodiless", 0, lambda name: not name.startswith("mtp."))
    preset = ("--preset", "experts-int4-g32", "--no-verify", "--out")
    _must(["quantize", base, *preset, room / "export"])
    _must(["quantize", bodiless, *preset, room / "headless"])
    shutil.rmtree(bodiless)
    _must(["ignore", room / "export", "add", "model.a", "--no-verify", "--out", room / "linked"])
    for name in ("export", "headless", "linked"):
        (room / name / ".git").mkdir()
        (room / name / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
        os.chmod(room / name, 0o750)
    for name in ("vocab.json", "tokenizer_config.json"):
        (room / "headless" / name).unlink()
    (room / "recipe.yaml").write_text(RECIPE)
    lines = [{"messages": [{"role": "user", "content": f"mark {n}"}, {"role": "assistant", "content": "yes " * 30}]}
             for n in range(40)]  # fmt: skip
    (room / "talk.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return room


def _must(arguments: list[Any]) -> None:
    done = ckpt(arguments)
    if done.code:
        raise RuntimeError(f"{arguments}: {done.said}")


def _write_shard(path: Path, shapes: Mapping[str, tuple[int, ...]], seed: int) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, shape in shapes.items():
        begin = len(data)
        data += _values(2 * prod(shape), f"{seed} {name}")
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _values(nbytes: int, seed: str) -> bytes:
    """BF16 numbers between 2^-15 and 1, of both signs: high bytes are sign and most of the exponent."""
    raw = bytearray(random.Random(seed).randbytes(nbytes))
    raw[1::2] = bytes((byte & 0x87) | 0x38 for byte in raw[1::2])
    return bytes(raw)


def _write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n")
