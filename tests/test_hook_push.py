"""The hook that `ckpt hook install` puts into a clone: what it judges of a push, and what it says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from building import INDEX, dense_llama, edit_json, write_shard
from hooking import LFS, SECOND, Clone, copied, needs_git, needs_lfs, new_clone, said

pytestmark = [needs_git, needs_lfs]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Clone]:
    """Clones with the hook: one with a sound checkpoint, which was pushed; one without git-lfs, and nothing in it."""
    sound = new_clone(tmp_path_factory.mktemp("sound"))
    dense_llama(sound.folder)
    sound.commit("sound")
    sound.git("push", "--quiet", "origin", "main")
    empty = new_clone(tmp_path_factory.mktemp("empty"), lfs=False)
    for clone in (sound, empty):
        clone.ckpt("hook", "install")
    return {"sound": sound, "empty": empty}


@pytest.fixture
def clone(templates: dict[str, Clone], tmp_path: Path) -> Clone:
    return copied(templates["sound"], tmp_path / "home")


@pytest.fixture
def plain(templates: dict[str, Clone], tmp_path: Path) -> Clone:
    return copied(templates["empty"], tmp_path / "home")


def break_it(clone: Clone, message: str = "broken") -> str:
    """A commit whose index lacks a tensor."""
    edit_json(clone.folder / INDEX, lambda index: index["weight_map"].pop("model.norm.weight"))
    return clone.commit(message)


def test_a_push_that_passes_says_what_was_judged_in_one_line(clone: Clone) -> None:
    (clone.folder / "README.md").write_text("# A model\n")
    commit = clone.commit()
    done = clone.push()
    assert done.returncode == 0
    (line,) = (line for line in said(done).splitlines() if line.startswith("ckpt: "))
    assert line.startswith(f"ckpt: refs/heads/main at {commit[:12]}, 2 shards: nothing found: ")
    assert clone.on_remote == {"refs/heads/main": commit}


def test_what_is_committed_counts_and_not_the_working_tree(clone: Clone) -> None:
    sound = (clone.folder / INDEX).read_text()
    broken = break_it(clone)
    (clone.folder / INDEX).write_text(sound)
    done = clone.push()
    assert done.returncode != 0
    assert f"refs/heads/main at {broken[:12]}" in said(done)
    assert "E F06 " in said(done)
    clone.commit("mended")
    (clone.folder / INDEX).write_text("{")
    assert clone.push().returncode == 0  # the tip is sound; the Hub serves no commit before it


def test_a_refusal_names_the_way_out_and_git_itself_has_one(clone: Clone) -> None:
    broken = break_it(clone)
    done = clone.push()
    assert "ckpt: refused, nothing is pushed." in done.stderr
    assert "git push --no-verify" in done.stderr
    assert "/view" not in said(done)  # what is named is the repository, not where it was looked at
    assert clone.push("--no-verify", "origin", "main").returncode == 0
    assert clone.on_remote["refs/heads/main"] == broken


def test_one_wrong_ref_of_several_stops_them_all(clone: Clone) -> None:
    clone.git("branch", "same")
    clone.git("checkout", "--quiet", "-b", "other")
    break_it(clone)
    done = clone.push("origin", "main:refs/heads/next", "same", "other")
    assert done.returncode != 0
    assert "ckpt: refs/heads/next, refs/heads/same at " in said(done)  # one tree, judged once
    assert "ckpt: refs/heads/other at " in said(done)
    assert set(clone.on_remote) == {"refs/heads/main"}


def test_an_annotated_tag_is_judged_by_the_commit_that_it_names(clone: Clone) -> None:
    clone.git("tag", "-m", "sound", "v1")
    assert clone.push("origin", "v1").returncode == 0
    break_it(clone)
    clone.git("tag", "-m", "broken", "v2")
    done = clone.push("origin", "v2")
    assert done.returncode != 0
    assert "ckpt: refs/tags/v2 at " in said(done)
    assert set(clone.on_remote) == {"refs/heads/main", "refs/tags/v1"}


def test_a_forced_push_is_judged_and_a_deletion_is_not(clone: Clone) -> None:
    clone.git("push", "--quiet", "--no-verify", "origin", "main:old")
    clone.git("commit", "--quiet", "--amend", "-m", "again")
    break_it(clone)
    assert clone.push("--force", "origin", "main").returncode != 0
    done = clone.push("origin", "--delete", "old")
    assert done.returncode == 0
    assert "ckpt:" not in said(done)
    assert set(clone.on_remote) == {"refs/heads/main"}


def test_a_push_without_checkpoint_passes_without_a_word(plain: Clone) -> None:
    (plain.folder / "config.json").write_text("{}")
    plain.commit()
    done = plain.push()
    assert done.returncode == 0
    assert "ckpt" not in said(done).replace(str(plain.remote), "")


def test_an_index_whose_shards_were_all_left_out_is_no_empty_repository(plain: Clone) -> None:
    dense_llama(plain.folder)
    (plain.folder / ".gitignore").write_text("*.safetensors\n")
    plain.commit()
    done = plain.push()
    assert done.returncode != 0
    assert "E F04 " in said(done)
    assert ", 0 shards: " in said(done)


def test_a_large_file_without_git_lfs_is_what_the_hub_rejects(plain: Clone) -> None:
    dense_llama(plain.folder)
    write_shard(plain.folder / "model-extra.safetensors", {"x": ("BF16", (2048, 2561), None)})
    plain.commit()
    done = plain.push()
    assert done.returncode != 0
    assert "the Hub would reject it" in said(done)
    assert "model-extra.safetensors: 10,489," in said(done)
    assert "git lfs migrate import --include='*.safetensors'" in said(done)


def test_a_pointer_counts_as_text_where_git_lfs_is_not_asked_for_it(clone: Clone) -> None:
    """Who clones this gets the pointer, since .gitattributes leaves the shards to git."""
    pointer = clone.git("cat-file", "blob", f"HEAD:{SECOND}").stdout
    (clone.folder / ".gitattributes").write_text("")
    (clone.folder / SECOND).write_text(pointer)
    clone.git("rm", "--quiet", "--cached", SECOND)
    clone.commit()
    done = clone.push()
    assert done.returncode != 0
    assert f"E F03 {SECOND}" in said(done)


def test_checkpoints_in_folders_are_judged_and_adapters_are_named(clone: Clone) -> None:
    for folder in ("int4", "adapter"):
        dense_llama(clone.folder / folder)
    (clone.folder / "adapter" / "config.json").unlink()
    (clone.folder / "adapter" / INDEX).unlink()
    edit_json(clone.folder / "int4" / INDEX, lambda index: index["weight_map"].pop("model.norm.weight"))
    for path in clone.folder.glob("*.*"):
        if path.is_file():
            path.unlink()
    (clone.folder / ".gitattributes").write_text(LFS)
    clone.commit()
    done = clone.push()
    assert done.returncode != 0
    assert ", int4/, 2 shards: " in said(done)
    assert ", adapter/, 2 shards: not judged: no config.json beside them, no index" in said(done)


def test_modules_that_lie_in_the_repository_are_not_run(clone: Clone) -> None:
    for name in ("click", "checkpoint", "ckpt", "json"):
        (clone.folder / f"{name}.py").write_text("raise SystemExit('ran what was pushed')\n")
    clone.commit()
    done = clone.push()
    assert done.returncode == 0
    assert "ran what was pushed" not in said(done)


def test_a_shard_that_links_out_of_the_repository_is_not_followed(plain: Clone, tmp_path: Path) -> None:
    dense_llama(plain.folder)
    outside = shutil.move(plain.folder / SECOND, tmp_path / "outside.safetensors")
    (plain.folder / SECOND).symlink_to(outside)
    plain.commit()
    done = plain.push()
    assert done.returncode != 0
    assert f"E F15 {SECOND}" in said(done)
