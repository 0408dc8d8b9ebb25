"""Random weights of the size and spread of real ones: BF16, N(0, 0.02), from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.stored import Place
from demo.sparse import sparse_header, tensor_bytes

SPREAD = 0.02
VALUES_AT_ONCE = 1 << 23


def write_random(path: Path, tensors: Mapping[str, Sequence[int]], seed: int) -> None:
    """A shard of BF16 `tensors` by name and shape, all of its data random and on disk."""
    entries = {name: ("BF16", tuple(shape)) for name, shape in tensors.items()}
    header = sparse_header(entries)
    path.write_bytes(header)
    fill(path, len(header), sum(tensor_bytes(*entry) for entry in entries.values()), seed)


def fill_places(places: Sequence[Place], seed: int) -> None:
    """Random BF16 over the bytes of tensors that are stored already, as holes or not."""
    for number, place in enumerate(places):
        fill(place.path, place.offset, place.nbytes, seed + number)


def fill(path: Path, offset: int, nbytes: int, seed: int) -> None:
    """Random BF16 over `nbytes` bytes of an existing file from `offset` on."""
    from numpy.random import default_rng

    generator = default_rng(seed)
    with path.open("r+b") as file:
        file.seek(offset)
        for start in range(0, nbytes // 2, VALUES_AT_ONCE):
            file.write(_random_bf16(generator, min(VALUES_AT_ONCE, nbytes // 2 - start)))


def _random_bf16(generator: Any, count: int) -> bytes:
    """`count` values, rounded to nearest, ties to even."""
    import numpy as np

    values = generator.standard_normal(count, dtype=np.float32)
    values *= np.float32(SPREAD)
    bits = values.view(np.uint32)
    bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded: bytes = (bits >> np.uint32(16)).astype("<u2").tobytes()
    return rounded
