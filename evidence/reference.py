"""A packed checkpoint as a dense BF16 one, by compressed-tensors' own unpacking: what the engine must agree with.

None of `ckpt`'s arithmetic is used. Experts stay one by one, as packed; both layouts are read by the engines.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from demo.shards import INDEX, State, read_shards, save_shard, write_index

if TYPE_CHECKING:
    import torch

PARTS = ("_packed", "_scale", "_shape", "_zero_point")


def write_reference(packed: Path, out: Path) -> Path:
    """Write the dense image of `packed` to `out`, shard by shard; returns `out`. Nothing is done if it exists."""
    if out.exists():
        return out
    out.mkdir()
    home: dict[str, str] = {}
    total = 0
    for path, tensors in read_shards(packed):
        dense = dense_state(tensors)
        save_shard(out / path.name, dense)
        home |= dict.fromkeys(dense, path.name)
        total += sum(tensor.nbytes for tensor in dense.values())
    write_index(out, home, total)
    _copy_side_files(packed, out)
    return out


def dense_state(tensors: State) -> State:
    """The tensors with each packed module as one BF16 `weight`. All parts of a module lie in the shard given."""
    modules = [name.removesuffix("_packed") for name in tensors if name.endswith(".weight_packed")]
    parts = {module + part for module in modules for part in PARTS}
    dense = {name: tensor for name, tensor in tensors.items() if name not in parts}
    return dense | {module: dense_weight(tensors, module) for module in modules}


def dense_weight(tensors: State, module: str) -> torch.Tensor:
    """The weight in BF16 whose parts are `MODULE_packed`, `_scale` and `_shape`; MODULE ends in `.weight`."""
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    packed, scale = tensors[f"{module}_packed"], tensors[f"{module}_scale"]
    rows, columns = tensors[f"{module}_shape"].tolist()
    bits = 32 * packed.shape[1] // columns
    codes = unpack_from_int32(packed, bits, torch.Size([rows, columns])).float()
    grouped: torch.Tensor = codes.reshape(rows, scale.shape[1], -1) * scale.float()[..., None]
    return grouped.reshape(rows, columns).to(scale.dtype)


def _copy_side_files(source: Path, out: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    config.pop("quantization_config")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for path in _side_files(source):
        shutil.copy(path, out / path.name)


def _side_files(folder: Path) -> Iterable[Path]:
    taken = (INDEX, "config.json")
    return (p for p in folder.iterdir() if p.is_file() and p.suffix != ".safetensors" and p.name not in taken)


if __name__ == "__main__":
    print(write_reference(Path(sys.argv[1]), Path(sys.argv[2])))
