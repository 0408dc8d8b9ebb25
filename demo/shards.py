"""Writing and reading sharded safetensors folders with the safetensors library, one dict of tensors at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

State = dict[str, "torch.Tensor"]
INDEX = "model.safetensors.index.json"


def save_shard(path: Path, tensors: State) -> None:
    """Write one shard with `{"format": "pt"}` as a new file, readable by all as a downloaded file is."""
    from safetensors.torch import save_file

    path.unlink(missing_ok=True)
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors creates it through a private temporary file


def save_sharded(folder: Path, tensors: State, shard_of: Mapping[str, str]) -> None:
    """Write `tensors` to the shards that `shard_of` names for them, and the index with the true total size."""
    for shard in sorted(set(shard_of.values())):
        save_shard(folder / shard, {name: tensor for name, tensor in tensors.items() if shard_of[name] == shard})
    write_index(folder, shard_of, sum(tensor.nbytes for tensor in tensors.values()))


def read_shards(folder: Path) -> Iterator[tuple[Path, State]]:
    """Each shard of `folder` with all its tensors, in the order of file names."""
    from safetensors.torch import load_file

    for path in sorted(folder.glob("*.safetensors")):
        yield path, load_file(path)


def write_index(folder: Path, shard_of: Mapping[str, str], total_size: int) -> None:
    """Write the index as transformers formats it: two spaces, names sorted."""
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(shard_of.items()))}
    replace_text(folder / INDEX, json.dumps(index, indent=2) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Write a new file at `path`, so that a hard link which shares the old one keeps its content."""
    path.unlink(missing_ok=True)
    path.write_text(text)
