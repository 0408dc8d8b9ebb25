"""Whatever fails, is interrupted or is killed while a checkpoint is replaced: it is as it was, or as it shall be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from breaking import each_failure, each_kill, killed_at, quick_folder
from drafting import contents, inodes, repository, with_work, without_exchange

from checkpoint import Draft, UnreadableCheckpoint, WriteFailed, apply_plan, open_checkpoint, plan_for, staging


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """Where failures are tried by the hundred."""
    with quick_folder(tmp_path) as folder:
        yield folder


def write(draft: Draft, **more: Any) -> Path:
    return apply_plan(plan_for(draft, None), None, **more).root


def edited(root: Path) -> Draft:
    """A draft that rewrites a shard, computes in another, links the third, and writes both documents."""
    draft = with_work(Draft.of(open_checkpoint(root)), "t4", step=2048).without(["t1"])
    return draft.with_config({"model_type": "other"})


def harmed(outcome: BaseException | None, failure: BaseException) -> bool:
    return isinstance(outcome, WriteFailed if isinstance(failure, OSError) else KeyboardInterrupt)


def test_whatever_fails_at_whatever_call_leaves_everything_as_it_was(way: str, room: Path) -> None:
    root, kept = repository(room), room / "kept" / "model"
    (root / "pipe").unlink()
    shutil.copytree(root, kept, symlinks=True)
    before, old, failures = contents(root), inodes(root), 0
    for call, failure, outcome in each_failure(lambda: write(edited(root), workers=2)):
        if outcome is None:  # not called that often
            assert contents(root) != before
            shutil.rmtree(root)
            shutil.copytree(kept, root, symlinks=True)
            old = inodes(root)
        else:
            failures += 1
            assert harmed(outcome, failure), (call, outcome)
            assert {n: i for n, i in inodes(root).items() if not (root / n).is_dir()} == {
                n: i for n, i in old.items() if not (root / n).is_dir()
            }, f"{call} {failure!r}"
        assert contents(root) == before, f"{call} {failure!r}"
        resumable = [".model.ckpt-journal", ".model.ckpt-new"] if getattr(outcome, "__notes__", ()) else []
        assert sorted(os.listdir(room)) == [*resumable, "kept", "model"], f"{call} {failure!r}"
    assert failures > 100


def test_a_killed_run_has_done_all_or_nothing_and_the_next_one_cleans_up(way: str, room: Path) -> None:
    root, kept = repository(room), room / "kept" / "model"
    (root / "pipe").unlink()
    shutil.copytree(root, kept, symlinks=True)
    before = contents(root)
    write(edited(root))
    after, kills, undone = contents(root), 0, 0
    shutil.rmtree(root)
    shutil.copytree(kept, root, symlinks=True)
    for point, killed in each_kill(lambda: write(edited(root), workers=2)):
        if (room / ".model.ckpt-undo" / "record.json").exists():
            undone += 1
            assert open_checkpoint(root).tensors  # undoes what was half done
            assert sorted(os.listdir(room)) == ["kept", "model"]
        made = contents(root)
        assert made in (before, after), point
        kills += killed
        if made == before:
            write(edited(root))
        else:
            write(Draft.of(open_checkpoint(root)))
        assert contents(root) == after, point
        assert sorted(os.listdir(room)) == ["kept", "model"], point
        shutil.rmtree(root)
        shutil.copytree(kept, root, symlinks=True)
    assert kills > 60
    assert (undone > 5) == (way == "file by file")


def half_done(root: Path) -> None:
    """Leave `root` as a run leaves it that was killed while it replaced files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "_exchange", without_exchange)
        assert killed_at(lambda: write(edited(root)), "replace", 3)


def test_an_undoing_that_is_killed_is_done_by_the_next_one(room: Path) -> None:
    root, half = repository(room / "now"), room / "half"
    (root / "pipe").unlink()
    before = contents(root)
    half_done(root)
    assert contents(root) != before
    shutil.copytree(root.parent, half, symlinks=True)
    kills = 0
    for _, killed in each_kill(lambda: open_checkpoint(root), calls=("replace", "unlink", "fsync", "rmdir")):
        kills += killed
        checkpoint = open_checkpoint(root)
        assert contents(root) == before
        write(Draft.of(checkpoint))
        assert contents(root) == before
        assert os.listdir(root.parent) == ["model"]
        shutil.rmtree(root.parent)
        shutil.copytree(half, root.parent, symlinks=True)
    assert kills > 5


@pytest.mark.parametrize(
    "record, prepare",
    [
        ({"replaced": [], "added": ["../victim"], "folders": []}, None),
        ({"replaced": [], "added": ["{victim}"], "folders": []}, None),
        ({"replaced": [], "added": ["notes/../../victim"], "folders": []}, None),
        ({"replaced": [], "added": ["out/victim"], "folders": []}, lambda m, undo: (m / "out").symlink_to("..")),
        ({"replaced": ["victim"], "added": [], "folders": []}, lambda m, undo: (undo / "files").symlink_to("..")),
        ({"replaced": ["x/victim"], "added": [], "folders": []}, lambda m, undo: (undo / "files").mkdir()
         or (undo / "files" / "x").symlink_to("../..")),
        ({"replaced": [], "added": [], "folders": [".."]}, None),
        ({"replaced": [], "added": [7], "folders": []}, None),
        ({"replaced": [], "added": []}, None),
        ([], None),
    ],
)  # fmt: skip
def test_a_record_that_came_with_the_folder_moves_and_removes_nothing_elsewhere(
    root: Path, tmp_path: Path, record: Any, prepare: Callable[[Path, Path], object] | None
) -> None:
    (tmp_path / "victim").write_text("precious")
    undo = tmp_path / ".model.ckpt-undo"
    undo.mkdir()
    (undo / "record.json").write_text(json.dumps(record).replace("{victim}", str(tmp_path / "victim")))
    if prepare:
        prepare(root, undo)
    before = contents(tmp_path)
    with pytest.raises(UnreadableCheckpoint):
        open_checkpoint(root)
    assert contents(tmp_path) == before


def test_a_folder_for_undoing_that_is_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "files").mkdir(parents=True)
    (tmp_path / "elsewhere" / "files" / "secret").write_text("secret")
    record = {"replaced": ["secret"], "added": [], "folders": []}
    (tmp_path / "elsewhere" / "record.json").write_text(json.dumps(record))
    (tmp_path / ".model.ckpt-undo").symlink_to("elsewhere")
    with pytest.raises(UnreadableCheckpoint):
        open_checkpoint(root)
    assert (tmp_path / "elsewhere" / "files" / "secret").exists()


def test_a_folder_that_is_being_replaced_is_not_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = os.replace

    def noted(source: Path, target: Path) -> None:
        real(source, target)
        with pytest.raises(UnreadableCheckpoint) as caught:
            open_checkpoint(root)
        seen.extend(problem.code for problem in caught.value.problems)

    monkeypatch.setattr(staging, "_exchange", without_exchange)
    monkeypatch.setattr(os, "replace", noted)
    write(edited(root))
    assert set(seen) == {"target-busy"}
