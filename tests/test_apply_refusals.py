"""What cannot be written whole is not written at all: source, target and what is beside stay as they were."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from building import write_shard
from drafting import SHARDS, Inverted, Refusing, contents, entries, sample, with_work, write

from checkpoint import (
    CkptError,
    Computed,
    Draft,
    Refused,
    UnreadableCheckpoint,
    WriteFailed,
    make_plan,
    open_checkpoint,
)
from checkpoint.errors import naming

GRAFT = "model-graft.safetensors"
ORIGINAL = dict(entries())


def refused(draft: Draft, target: Path, kind: type[CkptError] = Refused) -> list[str]:
    beside = contents(target.parent) if target.parent.exists() else None
    with pytest.raises(kind) as caught:
        write(draft, target)
    assert (contents(target.parent) if target.parent.exists() else None) == beside
    return [problem.code for problem in caught.value.problems]


def _file(path: Path) -> None:
    path.write_text("x")


def _full(path: Path) -> None:
    path.mkdir()
    (path / "x").write_text("x")


def _link(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), OSError(errno.ENOSPC, "full", 7)])
def test_a_failure_that_knows_no_file_or_only_a_handle_is_given_one(error: OSError, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"I/O error|full") as caught, naming(tmp_path / "x"):
        raise error
    assert caught.value.filename == str(tmp_path / "x")


def test_a_failure_that_knows_its_file_keeps_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, naming(tmp_path / "x"):
        (tmp_path / "y").stat()
    assert caught.value.filename == str(tmp_path / "y")


@pytest.mark.parametrize("make", [_file, _full, _link])
def test_a_target_that_exists_is_refused(source: Path, target: Path, make: Callable[[Path], None]) -> None:
    make(target)
    assert refused(Draft.of(open_checkpoint(source)), target) == ["target-exists"]


def test_a_target_inside_a_source_or_around_it_is_refused(tmp_path: Path) -> None:
    sample(tmp_path / "outer" / "source")
    base = tmp_path / "base"
    base.mkdir()
    write_shard(base / "model.safetensors", {"x": ("I8", (1,), b"x")})
    draft = Draft.of(open_checkpoint(tmp_path / "outer" / "source"))
    assert refused(draft, tmp_path / "outer" / "source" / "out") == ["target-nested"]
    assert refused(draft, tmp_path / "outer" / "source" / "new" / "out") == ["target-nested"]
    assert refused(draft, tmp_path / "outer") == ["target-exists"]
    draft = draft.added({"x": open_checkpoint(base).tensors["x"]}, GRAFT)
    assert refused(draft, base / "out") == ["target-nested"]
    assert write(draft, tmp_path / "outer" / "source-2").exists()


def test_a_disk_that_is_too_full_is_refused(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(Draft.of(open_checkpoint(source)).without(["t0"]))
    usage = shutil.disk_usage(source)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=plan.bytes_written))
    assert refused(plan.draft, target) == ["disk-full"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=plan.bytes_written + 17_000_000))
    write(plan.draft, target)


def test_a_source_that_changed_since_it_was_read_is_refused(source: Path, target: Path) -> None:
    draft = Draft.of(open_checkpoint(source))
    write_shard(source / SHARDS[1], {name: ORIGINAL[name] for name in ("t5", "t4", "t3")})
    assert refused(draft, target) == ["source-changed"]


def other_shard(folder: Path, names: tuple[str, ...]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").unlink(missing_ok=True)
    write_shard(folder / "model.safetensors", {name: ("I8", (len(name),), name.encode()) for name in names})


def test_a_base_that_changed_since_it_was_read_is_refused(tmp_path: Path, source: Path, target: Path) -> None:
    other_shard(tmp_path / "base", ("x", "y"))
    base = open_checkpoint(tmp_path / "base")
    draft = Draft.of(open_checkpoint(source)).added({"x": base.tensors["x"]}, GRAFT)
    draft = draft.noting("graft", "1 tensor", sources={"from": base})
    write(draft, tmp_path / "before")
    other_shard(tmp_path / "base", ("y", "x"))
    assert refused(draft, target) == ["source-changed"]


@pytest.mark.parametrize("name", [SHARDS[0], SHARDS[1]], ids=["computed", "linked"])
def test_a_source_that_changes_while_it_is_read_is_refused(source: Path, target: Path, name: str) -> None:
    times = iter(range(1, 1000))
    draft = with_work(
        Draft.of(open_checkpoint(source)), "t0", before=lambda block: os.utime(source / name, ns=(0, next(times)))
    )
    with pytest.raises(Refused) as caught:
        write(draft, target)
    assert [(problem.code, problem.file) for problem in caught.value.problems] == [("source-changed", name)]
    assert os.listdir(target.parent) == ["source"]


def test_a_shard_that_vanished_is_told(source: Path, target: Path) -> None:
    draft = Draft.of(open_checkpoint(source))
    (source / SHARDS[1]).unlink()
    assert refused(draft, target, UnreadableCheckpoint) == ["file-unreadable"]


def test_a_source_that_ends_early_is_told_and_leaves_nothing(tmp_path: Path, source: Path, target: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    write_shard(base / "model.safetensors", {"x": ("I8", (100,), None), "y": ("I8", (100,), None)})
    refs = open_checkpoint(base).tensors
    draft = Draft.of(open_checkpoint(source))
    os.truncate(base / "model.safetensors", refs["y"].offset + 50)
    assert refused(draft.added({"y": refs["y"]}, GRAFT), target, UnreadableCheckpoint) == ["truncated"]
    cut = draft.added({"y": Computed(Inverted(refs["y"]), "out")}, GRAFT)
    assert refused(cut, target, UnreadableCheckpoint) == ["truncated"]


def test_all_data_that_works_refuse_is_told_together_and_nothing_stays(source: Path, tmp_path: Path) -> None:
    draft = with_work(Draft.of(open_checkpoint(source)), "t1", "t4", "t8", kind=Refusing)
    with pytest.raises(Refused) as caught:
        write(with_work(draft, "t0", "t7"), tmp_path / "new" / "target", workers=2)
    places = [(problem.file, problem.tensor) for problem in caught.value.problems]
    assert places == [(SHARDS[0], "t1"), (SHARDS[1], "t4"), (SHARDS[2], "t8")]
    assert os.listdir(tmp_path) == ["source"]


def test_a_work_that_does_not_fill_its_outputs_is_a_bug_that_is_noticed(source: Path, tmp_path: Path) -> None:
    class Short(Inverted):
        def run(self, block: int, data: memoryview) -> Any:
            return list(super().run(block, data))[:1]

    class Long(Inverted):
        def run(self, block: int, data: memoryview) -> Any:
            yield "out", self.source.nbytes - 1, memoryview(b"ab")

    for kind, message in ((Short, "made 2 bytes less"), (Long, "out has 30 bytes, not 31")):
        with pytest.raises(ValueError, match=message):
            write(with_work(Draft.of(open_checkpoint(source)), "t0", kind=kind), tmp_path / "target")
        assert os.listdir(tmp_path) == ["source"]


def test_the_last_word_of_a_failure_is_its_file_and_reason(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    draft = with_work(Draft.of(open_checkpoint(source)), "t0")
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(WriteFailed) as caught:
        write(draft, target)
    problem = caught.value.problems[0]
    assert (problem.code, problem.file) == ("disk-full", str(target.parent / ".target.ckpt-new" / SHARDS[0]))
    assert problem.found.startswith("No space left on device; room for ")
