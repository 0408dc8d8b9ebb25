"""Weights that git-lfs keeps: judged where they are, without a copy; and what is done where they are elsewhere."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from building import INDEX, dense_llama, edit_json
from hooking import FIRST, SECOND, Clone, copied, needs_git, needs_lfs, new_clone, said

from ckpt.hooks.contents import contents_of
from ckpt.hooks.git import Git, GitFailed, without_passwords
from ckpt.hooks.lfs import NotJudged
from ckpt.hooks.target import pushed_by_git
from ckpt.hooks.tree import Entry, checkpoints_in, files_of, is_visible
from ckpt.hooks.view import ABANDONED, view

GIT = shutil.which("git")
pytestmark = [needs_git, needs_lfs]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A sound checkpoint, committed and pushed."""
    clone = new_clone(tmp_path_factory.mktemp("template"))
    dense_llama(clone.folder)
    clone.commit("sound")
    clone.git("push", "--quiet", "origin", "main")
    clone.ckpt("hook", "install")
    return clone


@pytest.fixture
def clone(template: Clone, tmp_path: Path) -> Clone:
    return copied(template, tmp_path / "home")


@pytest.fixture
def skipped(clone: Clone) -> Clone:
    """A clone that left the weights on the remote."""
    clone = Clone(clone.folder, clone.remote, {**clone.environment, "GIT_LFS_SKIP_SMUDGE": "1"})
    for path in clone.folder.glob("*.safetensors"):
        path.unlink()
    clone.git("reset", "--quiet", "--hard")
    shutil.rmtree(clone.folder / ".git" / "lfs" / "objects")
    return clone


def test_the_view_holds_the_stored_files_themselves(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    """No bytes are copied, wherever lfs.storage is; hidden files, which tools may act upon, are left out."""
    (clone.folder / ".model.ckpt-undo").mkdir()
    (clone.folder / ".model.ckpt-undo" / "record.json").write_text("{}")
    clone.git("config", "lfs.storage", str(clone.folder.parent / "elsewhere"))
    with (clone.folder / SECOND).open("ab") as file:
        file.write(b"\0")
    clone.commit()
    clone.git("config", "lfs.storage", str(clone.folder.parent / "elsewhere"))
    for name, value in clone.environment.items():
        monkeypatch.setenv(name, value)
    git = Git(clone.folder)
    entries = [entry for entry in files_of(git, "HEAD^{tree}") if is_visible(entry) and entry.path != FIRST]
    with contents_of(git, "HEAD^{tree}", entries).view() as root:
        names = {path.name for path in root.iterdir()}
        stored = [path for path in (clone.folder.parent / "elsewhere").rglob("*") if path.is_file()]
        assert any(path.samefile(root / SECOND) for path in stored)
    assert names == {SECOND, INDEX, "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert not root.exists()


def test_a_view_that_a_killed_run_left_is_removed_by_the_next(clone: Clone) -> None:
    left = clone.folder / ".git" / "lfs" / "ckpt" / "left"
    (left / "view").mkdir(parents=True)
    os.utime(left, (0, left.stat().st_mtime - ABANDONED - 60))
    clone.ckpt("hook", "run", "pre-push")
    assert not left.exists()


def test_a_file_cut_off_in_the_store_is_not_judged(clone: Clone) -> None:
    stored = max((clone.folder / ".git" / "lfs" / "objects").rglob("*"), key=lambda path: path.stat().st_size)
    os.truncate(stored, 100)
    done = clone.ckpt("hook", "run", "pre-push", check=False)
    assert done.returncode == 3
    assert "100 bytes in git-lfs's store" in said(done)


def test_weights_that_are_elsewhere_cannot_be_judged_so_the_push_is_refused(skipped: Clone) -> None:
    edit_json(skipped.folder / "config.json", lambda config: config.update(note=1))
    commit = skipped.commit()
    done = skipped.push()
    assert done.returncode != 0
    assert "not judged, so it may not pass" in said(done)
    assert f"{FIRST} and 1 more: git-lfs has the file elsewhere" in said(done)
    assert f"git lfs fetch origin {commit[:12]} (always: git config ckpt.fetch true)" in said(done)
    skipped.git("lfs", "fetch", "origin", commit)
    assert skipped.push().returncode == 0


def test_weights_are_fetched_where_that_was_asked_for(skipped: Clone) -> None:
    skipped.git("config", "ckpt.fetch", "true")
    edit_json(skipped.folder / INDEX, lambda index: index["weight_map"].pop("model.norm.weight"))
    skipped.commit()
    done = skipped.push()
    assert done.returncode != 0
    assert "E F06 " in said(done)


def test_a_push_that_leaves_the_checkpoint_as_it_is_there_passes_and_says_so(skipped: Clone) -> None:
    known = skipped.git("rev-parse", "HEAD").stdout.strip()
    (skipped.folder / "README.md").write_text("# A model\n")
    skipped.commit()
    done = skipped.push("origin", "main", "main:refs/heads/new")
    assert done.returncode == 0
    assert f"2 shards: not judged: the same as in {known[:12]}, which is there already" in said(done)


def test_no_password_is_shown_when_fetching_fails(skipped: Clone) -> None:
    edit_json(skipped.folder / "config.json", lambda config: config.update(note=1))
    commit = skipped.commit()
    address = "https://user:hf_abcdefghijklmnop@localhost:1/owner/name"
    skipped.git("config", "lfs.url", address)
    skipped.git("config", "lfs.transfer.maxretries", "1")
    command = ("hook", "run", "pre-push", "--fetch", address, address)
    told = f"refs/heads/main {commit} refs/heads/main {'0' * 40}\n"
    done = skipped.ckpt(*command, check=False, given=told)
    assert done.returncode == 3
    assert "git lfs fetch: " in said(done)
    assert "hf_abc" not in said(done)
    assert "user:" not in said(done)


@pytest.mark.parametrize(
    "text, shown",
    [
        ("fatal: https://user:pa@ss@hf.co/a/b failed", "fatal: https://hf.co/a/b failed"),
        ("batch: https://hf_token123456@hf.co/a", "batch: https://hf.co/a"),
        ("token hf_abcdefghijkl is wrong", "token hf_... is wrong"),
        ("https://hf.co/a@main and n@example.org", "https://hf.co/a@main and n@example.org"),
    ],
)
def test_what_git_says_is_shown_without_passwords(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@pytest.mark.parametrize(
    "path, visible",
    [("a/b.json", True), (".git/config", False), ("a/../../b", False), ("/etc/passwd", False), ("a/.x/b", False)],
)
def test_names_that_lead_out_of_the_view_are_left_out(path: str, visible: bool) -> None:
    assert is_visible(Entry("100644", "0" * 40, 1, path)) == visible


@pytest.mark.parametrize(
    "paths, found, others",
    [
        (["README.md", "config.json"], [], []),
        (["model.safetensors"], [""], []),
        (["a/model.safetensors", "a/config.json"], ["a"], []),
        (["a/adapter.safetensors", "b/model.safetensors.index.json"], ["b"], ["a"]),
        ([".cache/model.safetensors", "x/config.json"], [], []),
    ],
)
def test_where_a_commit_holds_checkpoints(paths: list[str], found: list[str], others: list[str]) -> None:
    assert checkpoints_in([Entry("100644", "0" * 40, 1, path) for path in paths]) == (found, others)


def test_what_cannot_be_asked_is_no_consent(clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without git, without git-lfs, with an object that is not there, with a line that git does not write."""
    git, programs = Git(clone.folder), tmp_path / "bin"
    entries = files_of(git, "HEAD^{tree}")
    with pytest.raises(GitFailed, match=f"{'0' * 40} is not in this repository"):
        list(git.blobs(["0" * 40]))
    with pytest.raises(GitFailed, match="expected four fields"):
        pushed_by_git("refs/heads/main\n")
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(GitFailed, match="git: No such file"):
        git.run("version")
    (programs / "git").symlink_to(str(GIT))
    with pytest.raises(NotJudged, match="git-lfs: keeps the weights, and is not installed"):
        contents_of(git, "HEAD^{tree}", entries)


def test_a_view_that_cannot_be_written_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotJudged, match="no view of the commit can be put here"), view(tmp_path / "file", (), {}):
        pass
