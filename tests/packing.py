"""Small dense checkpoints to be packed, and `quantize` as an operation with one group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from building import LLAMA, Entries, llama_entries, write_checkpoint
from qwen import CONFIG, entries

from checkpoint import Draft
from surgery import Group, Scheme, quantize

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
