"""Open files: thousands of shards under `ulimit -n`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from reliability.forking import ckpt, handles
from reliability.limits import layouts
from reliability.rows import Row

LIMIT = 64
"""A sixteenth of what systems allow a process by default."""


def bounded(room: Path, shards: int = 10_000) -> Iterator[Row]:
    """Commands on many shards, with few files allowed; `graft` writes every shard anew."""
    groups = {"group_0": layouts.scheme("Linear")}
    config = layouts.config(shards // 23, quantization_config=layouts.quantization(groups, ["lm_head"]))
    shapes = {f"model.layers.{n}.input_layernorm.weight": ("BF16", (64,)) for n in range(shards)}
    source = layouts.write(room / "src", {**layouts.packed(1), **shapes}, config, shards=shards)
    out, new = room / "out", room / "new"
    for words in (
        ("inspect", source),
        ("verify", source),
        ("ignore", source, "add", "model.nothing", "--no-verify", "--out", out),
        ("graft", source, "--from", source, "--tensors", "re:.*norm.weight$", "--max-tensors", "1000000", "--out", new),
        ("verify", new, "--base", source),
        ("manifest", "verify", new),
    ):
        ended = ckpt(words, handles(LIMIT))
        good = ended.code in (0, 1) and "Too many open files" not in ended.said and "Traceback" not in ended.said
        called = " ".join(str(word) for word in words[:2]) if words[0] == "manifest" else words[0]
        note = f"{ended.seconds:.1f} s of processor" if good else ended.said[-300:]
        yield Row(f"{called}: {shards:,} shards with {LIMIT} open files at most", 1, int(good), note)
    for folder in (source, out, new):
        shutil.rmtree(folder, ignore_errors=True)
