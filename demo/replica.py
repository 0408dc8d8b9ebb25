"""Qwen3.6-35B-A3B at full size, without its data: 26 shards, 71.9 GB that occupy almost no disk.

Names, dtypes, shapes, the shard of every tensor and config.json are those of the published release (the revision is in
`qwen36_35b_a3b/tensors.json`); data are holes that read as zeros. Usable as `python -m demo.replica DIR`.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from demo.qwen_files import write_side_files
from demo.sparse import tensor_bytes, write_sparse

RELEASE = files("demo") / "qwen36_35b_a3b"
SHARD = "model-{:05d}-of-{:05d}.safetensors"
FIRST_SPECIAL_ID = 248044


def inventory() -> dict[str, tuple[str, list[int]]]:
    """Every tensor of the release: `{name: (dtype, shape)}`, 1,045 entries."""
    release = _release()
    tensors: dict[str, tuple[str, list[int]]] = {}
    for group in release["groups"]:
        prefixes = [group["prefix"].format(number) for number in group["numbers"]] or [group["prefix"]]
        for prefix in prefixes:
            tensors |= {prefix + name: (release["dtype"], shape) for name, shape in group["shapes"].items()}
    return tensors


def weight_map() -> dict[str, str]:
    """Shard file of every tensor, as in the published index."""
    release = _release()
    return {name: SHARD.format(_shard_number(name, release), release["shard_count"]) for name in sorted(inventory())}


def build_replica(out: Path) -> Path:
    """Write the replica to `out`, a folder that must not exist yet; returns `out`."""
    out.mkdir(parents=True)
    tensors, shard_of = inventory(), weight_map()
    for shard in sorted(set(shard_of.values())):
        write_sparse(out / shard, {name: tensors[name] for name in tensors if shard_of[name] == shard})
    # The published index states its total as a float, and readers must live with it.
    total = float(sum(tensor_bytes(dtype, shape) for dtype, shape in tensors.values()))
    index = {"metadata": {"total_size": total}, "weight_map": shard_of}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    for name in ("config.json", "generation_config.json"):
        (out / name).write_bytes((RELEASE / name).read_bytes())
    write_side_files(out, first_special_id=FIRST_SPECIAL_ID)
    return out


def _release() -> dict[str, Any]:
    release: dict[str, Any] = json.loads((RELEASE / "tensors.json").read_text())
    return release


def _shard_number(name: str, release: dict[str, Any]) -> int:
    layer = re.fullmatch(r"model\.language_model\.layers\.(\d+)\.(.+)", name)
    if layer:
        row: list[int] = release["layer_shards"][int(layer[1])]
        return next(
            n for n, column in zip(row, release["layer_columns"], strict=True) if re.fullmatch(column, layer[2])
        )
    other: list[tuple[str, int]] = release["other_shards"]
    return next(number for pattern, number in other if re.fullmatch(pattern, name))


if __name__ == "__main__":
    print(build_replica(Path(sys.argv[1])))
