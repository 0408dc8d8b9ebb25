"""How far weights are from others by compressed-tensors and torch in 64 bits, and checkpoints to hold beside others."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from building import LLAMA, quantization, scheme, write_json
from exporting import LONE, State, save
from reference import packed
from safetensors.torch import load_file, save_file

from compare import Entry, Result, Sums


class Expected(NamedTuple):
    """By torch in 64 bits."""

    error: float
    sqnr: float
    largest: float
    largest_relative: float
    differing: int


def weights_of(folder: Path) -> State:
    """All tensors of a folder, packed weights by the values that compressed-tensors says they stand for, in 32 bits."""
    state = tensors(folder)
    names = [name.removesuffix(".weight_packed") for name in state if name.endswith(".weight_packed")]
    dense = {name: tensor for name, tensor in state.items() if ".weight_" not in name}
    return dense | {f"{name}.weight": decompressed(state, name) for name in names}


def tensors(folder: Path) -> State:
    """All tensors of a folder as they are stored."""
    state: State = {}
    for shard in sorted(folder.glob("*.safetensors")):
        state |= load_file(shard)
    return state


def decompressed(state: State, module: str) -> torch.Tensor:
    """A packed weight of a checkpoint, its scales taken as 32-bit numbers, so that nothing is rounded to BF16."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    parts = {
        name.removeprefix(f"{module}."): tensor for name, tensor in state.items() if name.startswith(f"{module}.w")
    }
    rows, columns = parts["weight_shape"].tolist()
    bits = parts["weight_packed"].shape[1] * 32 // columns
    groups = parts["weight_scale"].shape[1]
    group = scheme(bits, columns // groups if groups > 1 else None, symmetric="weight_zero_point" not in parts)
    parts["weight_scale"] = parts["weight_scale"].float()
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    weight: torch.Tensor = compressor.decompress(
        parts, QuantizationScheme(targets=["Linear"], weights=group["weights"])
    )["weight"]
    assert weight.dtype == torch.float32
    assert weight.shape == (rows, columns)
    return weight


def expected(a: torch.Tensor, b: torch.Tensor) -> Expected:
    """The distance of `b` from `a`."""
    before, after = a.double(), b.double()
    error = float((after - before).norm() / before.norm())
    far, largest = float((after - before).abs().max()), float(before.abs().max())
    sqnr = 10 * float(torch.log10(before.square().sum() / (after - before).square().sum()))
    return Expected(error, sqnr, far, far / largest, int((before != after).sum()))


def found(sums: Sums) -> Expected:
    return Expected(sums.relative, sums.sqnr, sums.largest_error, sums.largest_relative, sums.differing)


def measured(result: Result) -> dict[str, Sums]:
    """What changed, by name."""
    return {entry.name: entry.sums for entry in result.measured if entry.sums}


def states(result: Result) -> dict[str, str]:
    return {entry.name: entry.state for entry in result.entries}


def entry(result: Result, name: str) -> Entry:
    (one,) = (entry for entry in result.entries if entry.name == name)
    return one


def config(bits: int = 4, group: int | None = 32, *, symmetric: bool = True) -> dict[str, Any]:
    groups = {"group_0": scheme(bits, group, symmetric=symmetric)}
    return LLAMA | {"quantization_config": quantization("lm_head", **groups)}


def lone(folder: Path, state: State, document: Mapping[str, Any] | None = None) -> Path:
    """A checkpoint of one shard."""
    folder.mkdir(parents=True)
    save(folder, state)
    write_json(folder / "config.json", LLAMA if document is None else document)
    return folder


def packed_state(state: Mapping[str, torch.Tensor], bits: int, group: int | None, *, symmetric: bool = True) -> State:
    """Matrices packed by formulas of the tests' own, all else as it is."""
    result: State = {}
    for name, tensor in state.items():
        if tensor.ndim == 2:
            parts = packed(tensor, bits, group, symmetric=symmetric)
            result |= {f"{name.removesuffix('weight')}{suffix}": part for suffix, part in parts.items()}
        else:
            result[name] = tensor
    return result


def altered(source: Path, folder: Path, **tensors: torch.Tensor | None) -> Path:
    """A copy of a lone checkpoint with tensors put in or, if None, taken out; `__` stands for a dot in a name."""
    shutil.copytree(source, folder)
    state = load_file(folder / LONE)
    for key, tensor in tensors.items():
        name = key.replace("__", ".")
        if tensor is None:
            del state[name]
        else:
            state[name] = tensor
    save_file(state, folder / LONE, metadata={"format": "pt"})
    return folder
