"""Safetensors files of any size that cost no disk: a true header over a hole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

# In the order in which safetensors lays tensors out.
DTYPE_BYTES = {"I64": 8, "F64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "F8_E4M3": 1, "I8": 1, "U8": 1}


def tensor_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor, by its safetensors dtype name; KeyError for a dtype not in `DTYPE_BYTES`."""
    return DTYPE_BYTES[dtype] * prod(shape)


def sparse_header(tensors: Mapping[str, tuple[str, Sequence[int]]]) -> bytes:
    """The length prefix and JSON header of a shard that holds `tensors` back to back, as safetensors lays them out.

    By dtype, then by name, padded with spaces to a multiple of 8 (safetensors, `tensor.rs`, `prepare`).
    """
    rank = list(DTYPE_BYTES).index
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda item: (rank(item[1][0]), item[0])):
        begin, end = end, end + tensor_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_sparse(path: Path, tensors: Mapping[str, tuple[str, Sequence[int]]]) -> int:
    """Write `{name: (dtype, shape)}` to `path` with zeros for data that occupy no block; returns the file size."""
    header = sparse_header(tensors)
    size = len(header) + sum(tensor_bytes(dtype, shape) for dtype, shape in tensors.values())
    path.write_bytes(header)
    os.truncate(path, size)
    return size
