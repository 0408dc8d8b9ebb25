"""Applying costs what the plan said: bytes read, bytes written, memory."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from building import write_shard
from drafting import SHARDS, Inverted, with_work

from checkpoint import Draft, apply_plan, open_checkpoint, plan_for
from checkpoint.draft import Block
from checkpoint.plan import HASHING


class Traffic:
    """Bytes that really went through the calls that move data, and how many went by each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nbytes: Counter[str] = Counter()
        self._lock = threading.Lock()
        for name in ("preadv", "pwrite", "copy_file_range"):
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, real: Callable[..., int]) -> Callable[..., int]:
        def call(*args: Any, **more: Any) -> int:
            count = real(*args, **more)
            with self._lock:
                self.nbytes[name] += count
            return count

        return call


def test_bytes_read_and_written_are_those_that_were_planned(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(with_work(Draft.of(open_checkpoint(source)), "t0", "t4").without(["t1"]), target)
    side = sum(path.stat().st_size for path in plan.draft.side_files.values())
    told: Counter[str] = Counter()
    traffic = Traffic(monkeypatch)
    apply_plan(plan, target, progress=lambda shard, nbytes: told.update({shard: nbytes}))
    moved = traffic.nbytes["copy_file_range"] - side
    hashed = plan.bytes_written  # what was written is read back from memory for its hash
    assert traffic.nbytes["preadv"] + moved == plan.bytes_read + hashed
    assert traffic.nbytes["pwrite"] + moved == plan.bytes_written
    assert sum(told.values()) == plan.bytes_read
    rewritten = [shard for shard in plan.shards if shard.action == "rewritten"]
    assert {shard.name: shard.nbytes for shard in rewritten} == {n: (target / n).stat().st_size for n in SHARDS[:2]}
    assert {shard.name: told[shard.name] for shard in rewritten} == {s.name: s.bytes_read for s in rewritten}


class Copied(Inverted):
    """Work that holds just what its block_memory says: a block, and a copy of it."""

    def run(self, block: int, data: memoryview) -> Iterator[Block]:
        yield "out", block * self.step, memoryview(bytes(data))
        yield "sum", block, memoryview(b"x")


@pytest.mark.parametrize("workers", [1, 3])
def test_memory_is_what_was_planned_and_not_the_size_of_a_tensor(tmp_path: Path, target: Path, workers: int) -> None:
    (tmp_path / "source").mkdir()
    shapes = dict.fromkeys("ab", ("I8", (100000000,), None))
    write_shard(tmp_path / "source" / "model.safetensors", shapes)
    draft = with_work(Draft.of(open_checkpoint(tmp_path / "source")), "a", kind=Copied, step=5_000_000)
    plan = plan_for(draft, target)
    tracemalloc.start()
    try:
        apply_plan(plan, target, workers=workers)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert plan.memory(workers) == workers * 10_000_000 + len(plan.shards[0].header) + HASHING
    assert peak < plan.memory(workers) + 500_000
