"""A checkpoint is replaced in its place: in one step, or file by file where the file system has no such step."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from building import INDEX, edit_json, write_shard
from drafting import SHARDS, contents, entries, inodes, sample, tensors_of, with_work, without_exchange

from checkpoint import Draft, Refused, apply_plan, open_checkpoint, plan_for, staging
from checkpoint.apply import _refuse_mounted
from checkpoint.folder import MANIFEST

ORIGINAL = dict(entries())
RENUMBERED = tuple(f"model-{number:05d}-of-00002.safetensors" for number in (1, 2))


def write(draft: Draft, **more: Any) -> Path:
    return apply_plan(plan_for(draft, None), None, **more).root


def edited(root: Path) -> Draft:
    """A draft that rewrites a shard, computes in another, links the third, and writes both documents."""
    draft = with_work(Draft.of(open_checkpoint(root)), "t4", step=2048).without(["t1"])
    return draft.with_config({"model_type": "other"})


# What changes, and what stays


def test_the_new_checkpoint_stands_where_the_old_one_stood(way: str, tmp_path: Path, root: Path) -> None:
    draft = edited(root)
    expected = apply_plan(plan_for(draft, tmp_path / "new"), tmp_path / "new").root
    assert write(draft) == root
    made, planned = contents(root), contents(expected)
    foreign = {"to-file", "own.txt", "notes"}  # a link that a new folder holds as a file, and modes of their own
    assert {name: made[name] for name in planned if name not in foreign} == {
        name: value for name, value in planned.items() if name not in foreign
    }
    assert sorted(os.listdir(tmp_path)) == ["model", "new"]
    assert open_checkpoint(root).tensors.keys() == open_checkpoint(expected).tensors.keys()


def test_what_is_none_of_ours_survives_with_its_inode_and_mode(way: str, root: Path) -> None:
    before, old = contents(root), inodes(root)
    write(edited(root))
    after, new = contents(root), inodes(root)
    changed = {SHARDS[0], SHARDS[1], INDEX, "config.json"}
    assert after.keys() == before.keys()
    assert {name for name in before if after[name] != before[name]} == changed
    files = {name for name in before if not (root / name).is_dir() or (root / name).is_symlink()}
    assert {name for name in files if old[name] != new[name]} == changed


def test_a_draft_that_changes_nothing_keeps_every_inode(way: str, root: Path) -> None:
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    old = inodes(root)
    write(Draft.of(open_checkpoint(root)))
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*") if path.name != MANIFEST} == before
    kept = {name for name, inode in inodes(root).items() if inode == old[name]}
    assert {name for name in old if not (root / name).is_dir()} <= kept


def test_a_file_with_another_name_elsewhere_does_not_change_there(way: str, tmp_path: Path, root: Path) -> None:
    names = (*SHARDS, INDEX, "config.json", "tokenizer.json")
    (tmp_path / "other").mkdir()
    for name in names:
        os.link(root / name, tmp_path / "other" / name)
    before = contents(tmp_path / "other")
    write(edited(root))
    assert contents(tmp_path / "other") == before
    assert tensors_of(root) != tensors_of(tmp_path / "other")


def test_shards_and_side_files_that_are_no_more_are_gone(way: str, root: Path, tmp_path: Path) -> None:
    draft = Draft.of(open_checkpoint(root)).without(["t3", "t4", "t5"])
    (tmp_path / "fresh").write_text("fresh")
    (tmp_path / "tool").write_text("other tool")
    side = {n: p for n, p in draft.side_files.items() if n not in ("notes/deep/todo.txt", "tokenizer.json")}
    side |= {
        "templates/tool.jinja": tmp_path / "tool",
        "added/x.txt": tmp_path / "fresh",
        "README.md": tmp_path / "fresh",
    }
    before = set(contents(root))
    write(replace(draft, side_files=side))
    gone = {*SHARDS, "notes/deep/todo.txt", "tokenizer.json"}
    assert set(contents(root)) == before - gone | {*RENUMBERED, "added", "added/x.txt", "README.md"}
    assert (root / "templates/tool.jinja").read_text() == "other tool"
    assert (root / "added/x.txt").read_text() == "fresh"
    kept = {n: t for n, t in ORIGINAL.items() if n not in ("t3", "t4", "t5")}
    assert tensors_of(root) == kept | {"stray": ("I8", (3,), b"abc")}


def test_shards_that_change_names_with_each_other_keep_their_bytes(way: str, root: Path) -> None:
    """A lone file in an index pushes the others one further: each new name is another shard's old one."""
    (root / SHARDS[0]).rename(root / "model.safetensors")
    for number in (2, 3):
        (root / SHARDS[number - 1]).rename(root / f"model-{number - 1:05d}-of-00003.safetensors")
    homes = dict(zip(ORIGINAL, ["model.safetensors"] * 3 + [SHARDS[0]] * 3 + [SHARDS[1]] * 3, strict=True))
    edit_json(root / INDEX, lambda index: index.update(weight_map=homes))
    old = {name: inodes(root)[name] for name in ("model.safetensors", SHARDS[0], SHARDS[1])}
    write(Draft.of(open_checkpoint(root)))
    assert [inodes(root)[name] for name in SHARDS] == list(old.values())
    assert open_checkpoint(root).tensors["t4"].path.name == SHARDS[1]
    assert {n: t for n, t in tensors_of(root).items() if n != "stray"} == ORIGINAL


def test_a_root_given_as_a_link_stays_a_link(way: str, tmp_path: Path, root: Path) -> None:
    (tmp_path / "link").symlink_to("model")
    draft = edited(tmp_path / "link")
    assert write(draft) == root
    assert os.readlink(tmp_path / "link") == "model"
    assert "t4.out" in open_checkpoint(root).tensors
    assert sorted(os.listdir(tmp_path)) == ["link", "model"]


def test_a_relative_root_is_found(way: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    write(edited(Path(".")))
    assert "t4.out" in open_checkpoint(root).tensors


def test_mode_and_owner_of_the_folder_stay(way: str, root: Path) -> None:
    root.chmod(0o2750)
    before = root.stat()
    write(edited(root))
    after = root.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_an_owner_who_is_not_the_writer_keeps_the_folders(way: str, root: Path) -> None:
    for path in (root, root / "notes", root / "own.txt"):
        os.chown(path, 1234, 2345)
    write(edited(root))
    assert {path.stat().st_uid for path in (root, root / "notes", root / "own.txt")} == {1234}


def test_links_into_the_hub_cache_stay_where_nothing_changes(way: str, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--x" / "snapshots" / "abc"
    blobs = snapshot.parent.parent / "blobs"
    snapshot.mkdir(parents=True)
    sample(blobs)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    before = contents(blobs)
    write(Draft.of(open_checkpoint(snapshot)).without(["t0"]))
    assert contents(blobs) == before
    assert {path.name for path in snapshot.iterdir() if not path.is_symlink()} == {SHARDS[0], INDEX, MANIFEST}
    assert tensors_of(snapshot) == {n: t for n, t in ORIGINAL.items() if n != "t0"}


def test_where_nothing_can_be_linked_everything_is_copied(
    way: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    (root / "pipe").unlink()
    before = contents(root)
    monkeypatch.setattr(os, "link", refuse)
    write(edited(root))
    after = contents(root)
    changed = {SHARDS[0], SHARDS[1], INDEX, "config.json"}
    assert {name for name in before if after[name] != before[name]} == changed


# File by file


def test_index_and_config_are_replaced_when_all_shards_are_new_and_removals_come_last(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[str] = []
    real = os.replace

    def noted(source: Path, target: Path) -> None:
        if target.parent == root:
            replaced.append(target.name)
            assert (root / SHARDS[2]).exists()
        real(source, target)

    monkeypatch.setattr(staging, "_exchange", without_exchange)
    monkeypatch.setattr(os, "replace", noted)
    draft = Draft.of(open_checkpoint(root)).without(["t1", "t6", "t7", "t8"]).with_config({})
    write(draft)
    assert set(replaced[:-2]) == {*RENUMBERED, MANIFEST}
    assert set(replaced[-2:]) == {INDEX, "config.json"}
    assert not (root / SHARDS[2]).exists()


# Several runs, and others who write


def test_of_two_runs_at_once_the_second_is_refused(way: str, root: Path, tmp_path: Path) -> None:
    started, finish = threading.Event(), threading.Event()

    def before(block: int) -> None:
        started.set()
        finish.wait(10)

    draft = with_work(Draft.of(open_checkpoint(root)), "t4", before=before)
    second = edited(root)
    first = threading.Thread(target=write, args=(draft,))
    first.start()
    try:
        assert started.wait(10)
        with pytest.raises(Refused, match="another run is writing it"):
            write(second)
    finally:
        finish.set()
        first.join()
    assert "t4.out" in open_checkpoint(root).tensors
    assert "t1" in open_checkpoint(root).tensors
    assert os.listdir(tmp_path) == ["model"]
    with pytest.raises(Refused, match="changed since it was read"):
        write(second)


def _shard(root: Path) -> None:
    write_shard(root / SHARDS[2], {name: ORIGINAL[name] for name in ("t8", "t7", "t6")})


def _config(root: Path) -> None:
    edit_json(root / "config.json", lambda config: config.update(hidden_size=1))


def _index(root: Path) -> None:
    (root / INDEX).write_text((root / INDEX).read_text() + " ")


@pytest.mark.parametrize("change, name", [(_shard, SHARDS[2]), (_config, "config.json"), (_index, INDEX)])
def test_what_somebody_changed_meanwhile_is_not_overwritten(
    root: Path, change: Callable[[Path], None], name: str
) -> None:
    draft = edited(root)
    change(root)
    before = contents(root)
    with pytest.raises(Refused) as caught:
        write(draft)
    assert [(problem.code, problem.file) for problem in caught.value.problems] == [("source-changed", name)]
    assert contents(root) == before


def test_a_side_file_that_somebody_edits_meanwhile_keeps_the_edit(way: str, root: Path) -> None:
    draft = edited(root)
    (root / "tokenizer.json").write_text("{}")
    write(draft)
    assert (root / "tokenizer.json").read_text() == "{}"


@pytest.fixture
def mounted() -> Path:
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no mount point to try it on")
    return Path("/dev/shm")


def test_a_mount_point_is_refused_since_nothing_can_take_its_place(mounted: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is a mount point"):
        _refuse_mounted(mounted)
    _refuse_mounted(tmp_path)


def test_a_folder_that_is_closed_to_others_stays_so(way: str, root: Path) -> None:
    root.chmod(0o700)
    write(edited(root))
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
