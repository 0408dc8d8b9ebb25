"""Checkpoints whose costs are known: builds of Qwen3.6-35B-A3B at full size by name and shape, and small ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from building import WIDTHS, Entries, pack, quantization, scheme

from checkpoint import Checkpoint, open_checkpoint
from demo.replica import RELEASE, inventory
from demo.sparse import write_sparse

BODY = re.compile(
    r"model\.language_model\..*(\.experts\.\d+\.\w+|\.shared_expert\.\w+|\.self_attn\.[qkvo]_proj"
    r"|\.linear_attn\.(in_proj_qkv|in_proj_z|out_proj))"
)


def experts_only(module: str) -> bool:
    """The body's routed experts; the MTP head is left as it is."""
    return module.startswith("model.") and ".mlp.experts." in module


def full_body(module: str) -> bool:
    return BODY.fullmatch(module) is not None


def full_size(folder: Path, select: Callable[[str], bool], group_size: int, *, head: bool = False) -> Checkpoint:
    """A build of the release without its data; with `head`, lm_head is INT8 in groups of 128."""
    entries: Entries = {name: (dtype, tuple(shape), None) for name, (dtype, shape) in inventory().items()}
    entries = pack(entries, select, 4, group_size)
    groups = {"group_0": scheme(4, group_size)}
    if head:
        entries = pack(entries, lambda module: module == "lm_head", 8, 128)
        groups["group_1"] = scheme(8, 128) | {"targets": ["re:.*lm_head$"]}
    config = json.loads((RELEASE / "config.json").read_text())
    return sparse(folder, entries, config | {"quantization_config": quantization("re:.*mtp.*", **groups)})


def sparse(folder: Path, entries: Entries, config: dict[str, Any]) -> Checkpoint:
    """A checkpoint in one file that holds no data."""
    folder.mkdir(parents=True)
    write_sparse(folder / "model.safetensors", {name: (one[0], one[1]) for name, one in entries.items()})
    (folder / "config.json").write_text(json.dumps(config))
    return open_checkpoint(folder)


def total(entries: Entries, keep: Callable[[str], bool] = lambda name: True) -> int:
    """Bytes of the entries whose names `keep` takes."""
    return sum(WIDTHS[dtype] * prod(shape) for name, (dtype, shape, _) in entries.items() if keep(name))
