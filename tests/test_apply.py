"""A plan becomes a new folder, with the bytes that were promised."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from building import INDEX, write_shard
from drafting import CONFIG, SHARDS, Inverted, contents, entries, noise, opened, tensors_of, with_work, write
from safetensors import safe_open

from checkpoint import Computed, Draft, open_checkpoint

GRAFT = "model-graft.safetensors"
ORIGINAL = {name: (dtype, shape, data or b"") for name, (dtype, shape, data) in entries().items()}


def worked(name: str, step: int = 16) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """What `Inverted` should make of a tensor."""
    dtype, shape, data = ORIGINAL[name]
    blocks = [data[at : at + step] for at in range(0, len(data), step)] or [b""]
    sums = bytes(sum(block) % 256 for block in blocks)
    flipped = bytes(255 - byte for byte in data)
    return {f"{name}.out": (dtype, shape, flipped), f"{name}.sum": ("U8", (len(sums),), sums)}


def same_storage(one: Path, other: Path) -> bool:
    """One inode, or the same shared blocks of the disk."""
    return one.stat().st_ino == other.stat().st_ino or shared_blocks(one) == shared_blocks(other) != []


def shared_blocks(path: Path) -> list[str]:
    """The physical extents that a reflink shares with another file."""
    listed = subprocess.run(["filefrag", "-v", path], capture_output=True, text=True, check=False).stdout
    return [line.split(":")[2].strip() for line in listed.splitlines() if "shared" in line]


def test_a_draft_that_changes_nothing_gives_the_same_files(source: Path, target: Path) -> None:
    write(Draft.of(open_checkpoint(source)), target)
    assert contents(target) == contents(source)


def test_only_the_shards_that_change_take_disk(source: Path, target: Path) -> None:
    for name in SHARDS:
        write_shard(source / name, {name: ("I8", (1_000_000,), noise(1_000_000, name))})
    index = {"metadata": {"total_size": 3_000_000}, "weight_map": {name: name for name in SHARDS}}
    (source / INDEX).write_text(json.dumps(index))
    draft = Draft.of(open_checkpoint(source))
    write(draft.replaced({SHARDS[0]: {"renamed": draft.tensors[SHARDS[0]]}}), target)
    assert [same_storage(source / name, target / name) for name in SHARDS] == [False, True, True]


def test_untouched_tensors_of_a_rewritten_shard_keep_their_bytes(source: Path, target: Path) -> None:
    write(with_work(Draft.of(open_checkpoint(source)), "t4").without(["t8"]), target)
    kept = {name: ORIGINAL[name] for name in ORIGINAL if name not in ("t4", "t8")}
    assert tensors_of(target) == kept | worked("t4")
    with safe_open(target / SHARDS[1], "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_what_is_written_opens_without_a_problem(source: Path, target: Path) -> None:
    written = write(with_work(Draft.of(open_checkpoint(source)), "t0", "t5", "t6"), target)
    assert written == target
    assert open_checkpoint(target).problems == ()
    assert json.loads((target / INDEX).read_text())["metadata"]["total_size"] == open_checkpoint(target).nbytes


def test_tensors_of_another_checkpoint_come_byte_for_byte(tmp_path: Path, source: Path, target: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    write_shard(base / "model.safetensors", entries("base."))
    refs = open_checkpoint(base).tensors
    draft = Draft.of(open_checkpoint(source))
    write(draft.added(refs, GRAFT), target)
    assert tensors_of(target) == ORIGINAL | entries("base.")


def test_metadata_of_a_rewritten_shard_is_kept(source: Path, target: Path) -> None:
    write_shard(source / SHARDS[0], {n: ORIGINAL[n] for n in ("t0", "t1", "t2")}, {"format": "mlx", "by": "ü"})
    write(Draft.of(open_checkpoint(source)).without(["t0"]), target)
    with safe_open(target / SHARDS[0], "np") as file:
        assert file.metadata() == {"format": "mlx", "by": "ü"}


@pytest.mark.parametrize("mask, mode", [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_modes_follow_the_umask(source: Path, target: Path, mask: int, mode: int) -> None:
    draft = with_work(Draft.of(open_checkpoint(source)), "t0").with_config({})
    old = os.umask(mask)
    try:
        write(draft, target)
    finally:
        os.umask(old)
    for name in (SHARDS[0], INDEX, "config.json", "tokenizer.json"):
        assert stat.S_IMODE((target / name).stat().st_mode) == mode
    assert stat.S_IMODE(target.stat().st_mode) == mode | 0o111 & ~mask


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_any_number_of_workers_writes_the_same_bytes(source: Path, target: Path, workers: int) -> None:
    draft = with_work(Draft.of(open_checkpoint(source)), "t0", "t4", "t7", step=7)
    write(draft, target, workers=workers)
    computed = worked("t0", 7) | worked("t4", 7) | worked("t7", 7)
    assert tensors_of(target) == {n: t for n, t in ORIGINAL.items() if n not in ("t0", "t4", "t7")} | computed


def test_outputs_of_one_work_may_go_to_several_shards_or_nowhere(source: Path, target: Path) -> None:
    draft = Draft.of(open_checkpoint(source))
    work, lost = Inverted(draft.origin.tensors["t4"]), Inverted(draft.origin.tensors["t7"])
    draft = draft.replaced({"t4": {"t4.out": Computed(work, "out")}, "t7": {"t7.out": Computed(lost, "out")}})
    write(draft.added({"t4.sum": Computed(work, "sum")}, GRAFT), target)
    made = tensors_of(target)
    assert {name: made[name] for name in ("t4.out", "t4.sum")} == worked("t4")
    assert made["t7.out"] == worked("t7")["t7.out"]
    assert "t7.sum" not in made


def test_side_files_are_copied_since_people_edit_them_and_large_ones_are_shared(source: Path, target: Path) -> None:
    (source / "original").mkdir()
    with (source / "original" / "consolidated.00.pth").open("wb") as file:
        file.write(noise(100_000, "pth"))
        file.truncate(64 * 1024 * 1024)
    draft = Draft.of(open_checkpoint(source))
    write(replace(draft, side_files={n: p for n, p in draft.side_files.items() if n != "tokenizer.json"}), target)
    assert (target / "tokenizer_config.json").read_bytes() == (source / "tokenizer_config.json").read_bytes()
    assert (target / "tokenizer_config.json").stat().st_ino != (source / "tokenizer_config.json").stat().st_ino
    assert same_storage(target / "original/consolidated.00.pth", source / "original/consolidated.00.pth")
    assert not (target / "tokenizer.json").exists()


def test_a_link_of_the_hub_cache_becomes_a_file(tmp_path: Path, source: Path, target: Path) -> None:
    snapshot = tmp_path / "models--x" / "snapshots" / "abc"
    blobs = snapshot.parent.parent / "blobs"
    snapshot.mkdir(parents=True)
    source.rename(blobs)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    write(Draft.of(open_checkpoint(snapshot)).without(["t0"]), target)
    assert not any(path.is_symlink() for path in target.iterdir())
    assert tensors_of(target) == {n: t for n, t in ORIGINAL.items() if n != "t0"}


def test_strays_do_not_come_along(source: Path, target: Path) -> None:
    write_shard(source / "stray.safetensors", {})
    write(Draft.of(open_checkpoint(source)), target)
    assert not (target / "stray.safetensors").exists()


def test_folders_on_the_way_are_made_and_an_empty_target_is_taken(source: Path, tmp_path: Path) -> None:
    write(Draft.of(open_checkpoint(source)), tmp_path / "a" / "b" / "c")
    (tmp_path / "empty").mkdir(mode=0o750)
    write(Draft.of(open_checkpoint(source)), tmp_path / "empty")
    assert contents(tmp_path / "a" / "b" / "c") == contents(tmp_path / "empty") == contents(source)
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o750


def test_a_relative_target_and_a_linked_parent_are_followed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    draft = Draft.of(open_checkpoint(Path("source")))
    assert write(draft, Path("link/out")) == tmp_path / "real" / "out"
    assert contents(tmp_path / "real" / "out") == contents(source)


def test_where_nothing_can_be_linked_everything_is_copied(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise OSError(95, "Operation not supported")

    for name in ("link", "copy_file_range"):
        monkeypatch.setattr(os, name, refuse)
    write(Draft.of(open_checkpoint(source)).without(["t0"]), target)
    assert tensors_of(target) == {n: t for n, t in ORIGINAL.items() if n != "t0"}


def test_the_config_is_written_as_it_was_said(source: Path, target: Path) -> None:
    text = (source / "config.json").read_text()
    write(Draft.of(open_checkpoint(source)).with_config({**CONFIG, "hidden_size": 9}), target)
    assert (target / "config.json").read_text() == text.replace('"hidden_size": 8', '"hidden_size": 9')


def test_a_checkpoint_without_config_stays_without(source: Path, target: Path) -> None:
    (source / "config.json").unlink()
    write(opened(source)[1], target)
    assert not (target / "config.json").exists()
