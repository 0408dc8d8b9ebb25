"""A small mixture of experts, its experts packed to INT4 g32; sound, or damaged as exporters damage it."""

from __future__ import annotations

from pathlib import Path

import torch
from compressed_tensors.compressors import unpack_from_int32
from writing import tensors, written

from demo.damage import damage_export
from surgery import load_preset, quantize


def exported(base: Path, out: Path) -> Path:
    """The sound export of the small Qwen MoE."""
    return written(base, out, lambda draft: quantize(draft, load_preset("experts-int4-g32").groups))


def damaged(base: Path, out: Path) -> Path:
    """The export without draft head, with other norms, BF16 state, and other side files."""
    damage_export(exported(base, out))
    return out


def reference_error(export: Path, base: Path, module: str) -> float:
    """|unpacked - base| / |base| over all rows of a packed expert, unpacked by compressed-tensors."""
    state, source = tensors(export), tensors(base)
    owner, _, rest = module.partition(".experts.")
    number, _, part = rest.partition(".")
    weight = source[f"{owner}.experts.{part}"][int(number)].float()
    codes = unpack_from_int32(state[f"{module}.weight_packed"], 4, weight.shape).float()
    scale = state[f"{module}.weight_scale"].float().repeat_interleave(32, dim=1)
    return float(torch.linalg.norm(codes * scale - weight) / torch.linalg.norm(weight))
