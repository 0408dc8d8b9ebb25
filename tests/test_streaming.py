"""Shards written side by side: their hashes, the threads that memory allows, and faults at any of their stages."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drafting import SHARDS, Inverted, sample, with_work, write
from safetensors import deserialize

from checkpoint import Digest, Draft, Refused, WriteFailed, apply_plan, open_checkpoint, plan_for
from checkpoint import shardfile as shardfile_module
from checkpoint.digest import Hashing
from checkpoint.linking import copy_range


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return sample(tmp_path / "source")


def changing_every_shard(source: Path) -> Draft:
    return with_work(Draft.of(open_checkpoint(source)), "t0", "t4", "t8")


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_hashes_are_those_of_the_files(source: Path, tmp_path: Path, workers: int) -> None:
    target = tmp_path / "target"
    written = apply_plan(plan_for(changing_every_shard(source), target), target, workers=workers)
    expected = {name: hashlib.sha256((target / name).read_bytes()).hexdigest() for name in SHARDS}
    assert dict(written.sha256) == expected


def test_a_hash_covers_what_needs_many_pieces(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shardfile_module, "PIECE", 7)
    monkeypatch.setattr(shardfile_module, "HASHING", 20)
    target = tmp_path / "target"
    written = apply_plan(plan_for(changing_every_shard(source), target), target, workers=3)
    assert written.sha256 == {n: hashlib.sha256((target / n).read_bytes()).hexdigest() for n in SHARDS}


@pytest.mark.parametrize("room", [12, 20, 64, 4096])
def test_every_tensor_has_its_own_hash(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(shardfile_module, "HASHING", room)
    target = tmp_path / "target"
    written = apply_plan(plan_for(changing_every_shard(source), target), target, workers=2)
    for name in SHARDS:
        stored = deserialize((target / name).read_bytes())
        expected = {key: hashlib.sha256(tensor["data"]).hexdigest() for key, tensor in stored}
        assert written.digests[name].tensors == expected


def test_a_tensor_without_bytes_has_the_hash_of_nothing() -> None:
    hashing = Hashing([("empty", 3, 3), ("full", 3, 8), ("last", 8, 8)])
    for piece in (b"abc", b"de", b"fgh"):
        hashing.update(memoryview(piece))
    nothing = hashlib.sha256().hexdigest()
    assert hashing.result() == Digest(
        hashlib.sha256(b"abcdefgh").hexdigest(),
        {"empty": nothing, "full": hashlib.sha256(b"defgh").hexdigest(), "last": nothing},
    )


def test_linked_shards_are_not_hashed_nor_is_anything_that_was_not_asked_for(source: Path, tmp_path: Path) -> None:
    draft = with_work(Draft.of(open_checkpoint(source)), "t0")
    one = apply_plan(plan_for(draft, tmp_path / "a"), tmp_path / "a")
    none = apply_plan(plan_for(draft, tmp_path / "b"), tmp_path / "b", hashing=False)
    assert list(one.sha256) == [SHARDS[0]]
    assert none.sha256 == {SHARDS[0]: ""}
    assert (tmp_path / "a" / SHARDS[0]).read_bytes() == (tmp_path / "b" / SHARDS[0]).read_bytes()


def test_threads_are_as_many_as_asked_for_and_as_memory_has_room_for(source: Path, tmp_path: Path) -> None:
    plan = plan_for(with_work(Draft.of(open_checkpoint(source)), "t0", step=10), tmp_path / "target")
    assert [plan.threads(4, memory) for memory in (20, 39, 40, 79, 80, 10_000)] == [1, 1, 2, 3, 4, 4]
    assert plan_for(Draft.of(open_checkpoint(source)), tmp_path / "target").threads(4, 1) == 4


def test_no_more_blocks_run_at_once_than_memory_has_room_for(source: Path, tmp_path: Path) -> None:
    running, most = [0], [0]
    lock = threading.Lock()

    class Watched(Inverted):
        def run(self, block: int, data: memoryview) -> Any:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            yield from super().run(block, data)
            with lock:
                running[0] -= 1

    draft = with_work(Draft.of(open_checkpoint(source)), "t0", "t1", kind=Watched, step=4)
    apply_plan(plan_for(draft, tmp_path / "target"), tmp_path / "target", workers=8, memory=8)
    assert most == [1]


def test_memory_that_holds_no_block_is_refused_with_what_is_needed(source: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        write(with_work(Draft.of(open_checkpoint(source)), "t0", step=10), tmp_path / "target", memory=19)
    (problem,) = caught.value.problems
    assert (problem.code, problem.tensor) == ("memory-small", "t0")
    assert "19 bytes" in problem.found
    assert "20" in problem.expected
    assert os.listdir(tmp_path) == ["source"]


def _failing(call: Callable[..., Any], times: int) -> Callable[..., Any]:
    """`call`, which fails from the `times`th time on."""
    left = [times]

    def wrapped(*args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(5, "Input/output error")
        return call(*args, **more)

    return wrapped


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_disk_that_fails_at_flushing_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(os, "fsync", _failing(os.fsync, times))
    with pytest.raises(WriteFailed, match="Input/output error"):
        write(changing_every_shard(source), tmp_path / "target", workers=2)
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize("times", [0, 1, 4])
def test_a_copy_that_fails_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(shardfile_module, "PIECE", 16)
    monkeypatch.setattr(shardfile_module, "copy_range", _failing(copy_range, times))
    with pytest.raises(WriteFailed, match="Input/output error"):
        write(changing_every_shard(source), tmp_path / "target", workers=2)
    assert os.listdir(tmp_path) == ["source"]


def test_no_handle_is_left_open_by_a_run_or_by_a_failed_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    write(changing_every_shard(source), tmp_path / "target", workers=2)
    monkeypatch.setattr(os, "fsync", _failing(os.fsync, 1))
    with pytest.raises(WriteFailed):
        write(changing_every_shard(source), tmp_path / "again", workers=2)
    assert sorted(os.listdir("/proc/self/fd")) == before
