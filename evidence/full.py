"""`python -m evidence.full DIR [--headers]`: Qwen3.6-35B-A3B at full size, quantized, without its weights.

Names, dtypes, shapes, shards, index and config are what `ckpt run` and `ckpt quantize` plan for the release, whose
headers `demo.replica` has; the data are drawn here, not computed: codes from -7 to 7 at random, scales around
a plausible size, routers at random so that tokens spread over the experts, and the rest as in `evidence.small`, so that
the model counts in circles and accepts its own drafts. Reading them costs an engine what the real ones cost. With
`--headers` the data are holes: for what reads headers alone.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from checkpoint import Draft, Plan, ShardPlan, open_checkpoint, plan_for
from demo.qwen_files import BASE_VOCABULARY
from demo.replica import build_replica
from demo.sparse import tensor_bytes
from surgery import load_preset, load_recipe, quantize
from surgery.recipe import build

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

BUFFER = 1 << 24
"""Elements drawn of each kind; tensors are slices of them."""

HEADS = ("lm_head.weight", "lm_head.weight_packed")

WORDS = BASE_VOCABULARY
"""The ids that follow one another: those that the tokenizer has."""

GAIN = 15.0
"""Logit of the right token, about; that of any other is below 2."""

# (name, mean, spread): as in `evidence.small`, the branches of 40 layers made smaller. -k is k/sqrt(fan in).
SPREADS: tuple[tuple[str, float, float], ...] = (
    (r".*\.(A_log|dt_bias)", 0.0, 0.5),
    (r"model\.visual\..*norm\d?\.weight|.*\.linear_attn\.norm\.weight", 1.0, 0.05),
    (r".*norm\w*\.weight", 0.0, 0.02),
    (r".*\.bias", 0.0, 0.02),
    (r".*\.conv1d\.weight", 0.0, 0.5),
    (r".*\.embed_tokens\.weight", 0.0, 1.0),
    (r"lm_head\.weight", 0.0, 0.0005),
    (r".*\.mlp\.gate\.weight", 0.0, -2.0),
    (r".*\.linear_attn\.out_proj\.weight", 0.0, -0.1),
    (r".*\.self_attn\.o_proj\.weight", 0.0, -0.16),
    (r".*experts?\.(\d+\.)?down_proj(\.weight)?", 0.0, -0.4),
    (r".*", 0.0, -1.0),
)
CODES_SPREAD = 4.32
"""Standard deviation of a code drawn evenly from -7 to 7."""

Bytes = bytes | memoryview
Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""dtype and shape by name, in the order of a file."""


@dataclass(frozen=True)
class Build:
    """One checkpoint: its name, what it is, and the command of `ckpt` whose plan it follows."""

    name: str
    what: str
    command: str


BUILDS = (
    Build("experts", "experts-only INT4 g32", "ckpt quantize BASE --preset experts-int4-g32 --out EXPORT"),
    Build("body-head", "full-body INT4 g128, INT8 head", "ckpt run body-int4-g128 BASE --out EXPORT"),
    Build("body", "full-body INT4 g128", "ckpt quantize BASE --preset body-int4-g128 --out EXPORT"),
)


def main(root: Path, headers: bool = False) -> None:
    """Make the replica and all builds in `root`; a build that was not finished is made anew."""
    root.mkdir(parents=True, exist_ok=True)
    if not (root / "base").exists():
        build_replica(root / "base")
    for build_ in BUILDS:
        began = time.time()
        if not (root / build_.name / "done").exists():
            nbytes = write_build(plan_of(build_.name, root), root / build_.name, headers)
            print(f"{build_.name}: {nbytes:,} bytes in {time.time() - began:.0f} s", flush=True)


def plan_of(name: str, root: Path) -> Plan:
    """What `ckpt` would write for the build, from the headers of the base in `root`."""
    draft = Draft.of(open_checkpoint(root / "base"))
    if name == "body-head":
        return plan_for(build(draft, load_recipe("body-int4-g128")), root / name)
    preset = load_preset("experts-int4-g32" if name == "experts" else "body-int4-g128")
    return plan_for(quantize(draft, preset.groups, ignore=preset.ignore, maths=preset.maths), root / name)


def write_build(plan: Plan, out: Path, headers: bool = False) -> int:
    """Write the plan with drawn data, or holes; returns the bytes of its shards. `out` has a file `done` at the end."""
    out.mkdir(exist_ok=True)
    with ThreadPoolExecutor(min(12, os.cpu_count() or 4)) as pool:
        written = sum(pool.map(lambda shard: write_shard(shard, plan, out, headers), plan.shards))
    documents = {"config.json": plan.config, "model.safetensors.index.json": plan.index}
    for name, document in documents.items():
        if document is not None:
            (out / name).write_text(json.dumps(document.value, indent=2) + "\n")
    for name, path in plan.draft.side_files.items():
        (out / name).write_bytes(Path(str(path)).read_bytes())
    (out / "done").touch()
    return written


def write_shard(shard: ShardPlan, plan: Plan, out: Path, headers: bool = False) -> int:
    """Write one shard: the header that `ckpt` planned, or that of the base, and drawn data. Returns its bytes.

    What is drawn depends on name and shape alone: a shard of the same header in another build is linked, not written.
    """
    header, tensors = layout(shard, plan)
    path = out / shard.name
    for build_ in BUILDS:
        twin = out.parent / build_.name / shard.name
        if build_.name != out.name and twin.exists() and _starts_with(twin, header):
            path.unlink(missing_ok=True)
            path.hardlink_to(twin)
            return twin.stat().st_size
    with path.open("wb") as file:
        file.write(header)
        for name in () if headers else tensors:
            for piece in drawn(name, tensors):
                file.write(piece)
        if headers:
            file.truncate(shard.nbytes)
        return shard.nbytes


def layout(shard: ShardPlan, plan: Plan) -> tuple[bytes, Tensors]:
    """The header's bytes, and dtype and shape of each tensor in the order in which the data lie."""
    if shard.tensors:
        return shard.header, {name: (one.dtype, tuple(one.shape)) for name, one in shard.tensors.items()}
    header = plan.draft.origin.shards[str(shard.was)]
    with Path(str(shard.source)).open("rb") as file:
        return file.read(header.nbytes), {ref.name: (ref.dtype, ref.shape) for ref in header.tensors.values()}


def drawn(name: str, tensors: Tensors) -> Iterable[Bytes]:
    """The data of one tensor, piece by piece."""
    owner, _, part = name.rpartition(".")
    dtype, shape = tensors[name]
    if name == "model.language_model.embed_tokens.weight":
        return [words(shape[1]).tobytes(), *_rest(normals(*_spread(name, shape)), name, dtype, shape)]
    if owner == "lm_head" and part != "weight_shape":
        return head(part, tensors)
    if name == "mtp.fc.weight":
        return [draft_projection(shape[0])]
    if not part.startswith("weight_"):
        return sliced(normals(*_spread(name, shape)), name, tensor_bytes(dtype, shape))
    rows, columns = _rows_and_columns(owner, tensors)
    if part == "weight_shape":
        return [rows.to_bytes(8, "little") + columns.to_bytes(8, "little")]
    if part == "weight_packed":
        return sliced(codes(4), name, tensor_bytes(dtype, shape))
    _, spread = _spread(f"{owner}.weight", (rows, columns))
    return sliced(scales(spread / CODES_SPREAD), name, tensor_bytes(dtype, shape))


def head(part: str, tensors: Tensors) -> Iterable[Bytes]:
    """A part of the output head: the rows of `words` in the order of their successors, and little in all others."""
    columns = next(shape[1] for name, (_, shape) in tensors.items() if name in HEADS)
    dtype, shape = tensors[f"lm_head.{part}"]
    name = f"lm_head.{part}"
    if part == "weight":
        return [bf16(head_rows(columns)).tobytes(), *_rest(normals(0.0, 0.0005), name, dtype, shape)]
    columns *= 4  # four codes of 8 bits in a word
    packed, steps = packed_rows(head_rows(columns), columns // tensors["lm_head.weight_scale"][1][1])
    if part == "weight_packed":
        return [packed, *_rest(codes(8), name, dtype, shape)]
    return [steps, *_rest(scales(0.0005 / 73), name, dtype, shape)]


def packed_rows(weight: Array, group: int) -> tuple[bytes, bytes]:
    """F32 [N, K] as INT8 codes offset by 128, and BF16 scales [N, K/group], round-to-nearest."""
    import numpy as np

    grouped = weight.reshape(len(weight), -1, group)
    steps = bf16(np.abs(grouped).max(-1) / 127.5)
    wide = (steps.astype(np.uint32) << 16).view(np.float32)
    rounded = np.clip(np.round(grouped / wide[..., None]), -128, 127)
    return (rounded + 128).astype(np.uint8).tobytes(), steps.tobytes()


def draft_projection(hidden: int) -> bytes:
    """`mtp.fc.weight` [H, 2H]: the identity over the embedding, a little of the hidden state."""
    import numpy as np

    noise = np.random.default_rng(3).standard_normal((hidden, hidden), np.float32) * 0.2 / hidden**0.5
    return bf16(np.concatenate([np.eye(hidden, dtype=np.float32), noise], 1)).tobytes()


@cache
def words(hidden: int) -> Array:
    """The first rows of the embedding, BF16 bits [WORDS, H]."""
    import numpy as np

    return bf16(np.random.default_rng(1).standard_normal((WORDS, hidden), np.float32))


def head_rows(hidden: int) -> Array:
    """The first rows of the head, F32 [WORDS, H]: row successor(t) points along the embedding of t."""
    import numpy as np

    embedded = (words(hidden).astype(np.uint32) << 16).view(np.float32)
    rows = np.empty_like(embedded)
    rows[successors()] = embedded * np.float32(GAIN / hidden)
    return rows


def successors() -> Array:
    """The successor of each of the first ids: one circle through all of them."""
    import numpy as np

    circle = np.random.default_rng(2).permutation(WORDS)
    after = np.empty_like(circle)
    after[circle] = np.roll(circle, -1)
    return after


@cache
def normals(mean: float, spread: float) -> memoryview:
    """BF16 values around `mean`."""
    return bf16(mean + spread * _standard()).view("u1").data


@cache
def scales(size: float) -> memoryview:
    """BF16 values above zero, around `size`."""
    import numpy as np

    return bf16(size * np.exp(0.1 * _standard())).view("u1").data


@cache
def codes(bits: int) -> memoryview:
    """Codes with their offset, evenly from the lowest but one to the highest; two in a byte for 4 bits."""
    import numpy as np

    draw = np.random.default_rng(bits).integers(1, 1 << bits, BUFFER * 8 // bits, np.uint8)
    return np.ascontiguousarray(draw if bits == 8 else draw[::2] | draw[1::2] << 4).data


@cache
def _standard() -> Array:
    import numpy as np

    return np.random.default_rng(0).standard_normal(BUFFER, np.float32)


def bf16(values: Array) -> Array:
    """F32 as the bits of the nearest BF16, ties to even."""
    import numpy as np

    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def sliced(buffer: memoryview, name: str, nbytes: int) -> Iterable[Bytes]:
    """`nbytes` of the buffer, from a place that depends on the name, as often round as needed."""
    start = crc32(name.encode()) % (len(buffer) // 8) * 8
    while nbytes:
        piece = buffer[start : start + nbytes]
        yield piece
        nbytes, start = nbytes - len(piece), 0


def _rest(buffer: memoryview, name: str, dtype: str, shape: tuple[int, ...]) -> Iterable[Bytes]:
    """The rows behind the first ones."""
    return sliced(buffer, name, tensor_bytes(dtype, (shape[0] - WORDS, *shape[1:])))


def _rows_and_columns(owner: str, tensors: Tensors) -> tuple[int, int]:
    rows, columns = tensors[f"{owner}.weight_packed"][1]
    return rows, columns * (4 if owner == "lm_head" else 8)


def _spread(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    mean, spread = next((mean, spread) for pattern, mean, spread in SPREADS if re.fullmatch(pattern, name))
    if spread < 0:
        spread = -spread / (shape[-1] if len(shape) <= 3 else prod(shape[1:])) ** 0.5
    return mean, spread


def _starts_with(path: Path, header: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(header)) == header


if __name__ == "__main__":
    main(Path(sys.argv[1]), headers="--headers" in sys.argv[2:])
