"""What a folder tells of where it came from: the Hub cache, `hf download --local-dir`, git; what it must not tell."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from building import INDEX
from drafting import SHARDS, opened, sample, write
from hub import HubServer
from test_cli import ckpt

from checkpoint import Draft, open_checkpoint
from checkpoint.folder import MANIFEST
from checkpoint.manifest import differences, read_manifest, traced

COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
DIGEST = "ab" * 32


def told(folder: Path, target: Path) -> dict[str, Any]:
    """What the manifest of something made of `folder` says of it."""
    write(opened(folder)[1].without(["t0"]), target)
    manifest = read_manifest(target)
    assert manifest is not None
    found: dict[str, Any] = manifest.document["inputs"][-1]
    return found


def note(folder: Path, name: str, commit: str = COMMIT, etag: str = DIGEST, *, later: float = 10) -> None:
    """What huggingface_hub leaves beside a file that it downloaded."""
    path = folder / ".cache" / "huggingface" / "download" / f"{name}.metadata"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{commit}\n{etag}\n{(folder / name).stat().st_mtime + later}\n")


def git(folder: Path, head: str, **files: str) -> None:
    (folder / ".git" / "refs" / "heads").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text(head)
    for name, text in files.items():
        (folder / ".git" / name.replace("_", "-" if name == "packed_refs" else "/")).write_text(text)


def snapshot(folder: Path) -> Path:
    """A checkpoint in a Hub cache: links to blobs, large files called by their SHA-256, small ones by git's SHA-1."""
    blobs, root = folder / "models--org--the-name" / "blobs", folder / "models--org--the-name" / "snapshots" / COMMIT
    sample(root)
    blobs.mkdir()
    for number, path in enumerate(sorted(root.iterdir())):
        blob = blobs / (f"{number:064x}" if path.suffix == ".safetensors" else f"{number:040x}")
        path.rename(blob)
        path.symlink_to(f"../../blobs/{blob.name}")
    return root


def test_a_snapshot_of_the_hub_cache_is_a_repository_at_a_commit(tmp_path: Path) -> None:
    root = snapshot(tmp_path / "hub")
    found = told(root, tmp_path / "out")
    assert (found["place"], found["revision"]) == ("hf://org/the-name", COMMIT)
    blobs = {name: (root / name).resolve().name for name in SHARDS}
    assert {name: shard["sha256"] for name, shard in found["shards"].items()} == blobs
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert {name: manifest.shards[name]["sha256"] for name in SHARDS[1:]} == {name: blobs[name] for name in SHARDS[1:]}


def test_a_folder_that_hf_download_made_tells_commit_and_hashes(source: Path, target: Path) -> None:
    for name in SHARDS:
        note(source, name)
    found = told(source, target)
    assert (found["place"], found["revision"]) == ("source", COMMIT)
    assert {shard["sha256"] for shard in found["shards"].values()} == {DIGEST}


def test_a_file_that_was_written_since_its_download_tells_nothing(source: Path, target: Path) -> None:
    for name in SHARDS:
        note(source, name, later=-5 if name == SHARDS[1] else 10)
    found = told(source, target)
    assert found["revision"] is None
    assert [shard["sha256"] for shard in found["shards"].values()] == [DIGEST, None, DIGEST]


def test_downloads_of_two_commits_are_at_none(source: Path, target: Path) -> None:
    for name in SHARDS:
        note(source, name, COMMIT if name != SHARDS[2] else OTHER)
    assert told(source, target)["revision"] is None


@pytest.mark.parametrize("text", ["", "x\ny\nz\n", f"{COMMIT}\n{DIGEST}\n", f"{COMMIT}\n{DIGEST}\nnever\n", "\xff" * 9])
def test_a_note_that_is_none_tells_nothing(text: str, source: Path, target: Path) -> None:
    for name in SHARDS:
        note(source, name)
        (source / ".cache" / "huggingface" / "download" / f"{name}.metadata").write_bytes(text.encode("latin-1"))
    found = told(source, target)
    assert (found["revision"], {shard["sha256"] for shard in found["shards"].values()}) == (None, {None})


def test_small_files_have_an_etag_that_is_no_sha256(source: Path, target: Path) -> None:
    for name in SHARDS:
        note(source, name, etag="c" * 40)
    found = told(source, target)
    assert (found["revision"], {shard["sha256"] for shard in found["shards"].values()}) == (COMMIT, {None})


@pytest.mark.parametrize(
    ("head", "files"),
    [
        (f"{COMMIT}\n", {}),
        ("ref: refs/heads/main\n", {"refs_heads_main": f"{COMMIT}\n"}),
        (
            "ref: refs/heads/main\n",
            {"packed_refs": f"# pack-refs with: peeled\n{OTHER} refs/heads/x\n{COMMIT} refs/heads/main\n"},
        ),
    ],
    ids=["detached", "loose", "packed"],
)
def test_a_git_clone_is_at_its_head(head: str, files: dict[str, str], source: Path, target: Path) -> None:
    git(source, head, **files)
    assert told(source, target)["revision"] == COMMIT


@pytest.mark.parametrize(
    "head", ["ref: refs/heads/../../../secret\n", "ref: refs/heads/none\n", "ref: /etc/passwd\n", "", "g" * 40]
)
def test_a_head_that_leads_nowhere_tells_nothing(head: str, source: Path, target: Path) -> None:
    (source / "secret").write_text(COMMIT)
    git(source, head)
    assert told(source, target)["revision"] is None


def test_a_clone_into_which_a_run_has_written_is_at_no_commit(source: Path, target: Path) -> None:
    git(source, f"{COMMIT}\n")
    write(opened(source)[1].without(["t1"]), target)
    (source / MANIFEST).write_bytes((target / MANIFEST).read_bytes())
    assert told(source, target.with_name("other"))["revision"] is None


def test_a_relative_folder_is_called_by_its_name(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source)
    assert told(Path("."), target)["place"] == "source"


def test_a_remote_that_carries_a_token_is_not_repeated(source: Path, target: Path) -> None:
    git(source, f"{COMMIT}\n", config='[remote "origin"]\n\turl = https://user:hf_secret@huggingface.co/o/n\n')
    told(source, target)
    assert "hf_secret" not in (target / MANIFEST).read_text()
    assert os.fspath(source.parent) not in (target / MANIFEST).read_text()
    assert INDEX in (target / MANIFEST).read_text()


# The Hub


def test_a_repository_of_the_hub_is_an_input_at_its_commit(online: HubServer, source: Path, target: Path) -> None:
    commit = online.publish("org/model", source)
    write(Draft.of(open_checkpoint("hf://org/model")).without(["t0"]), target)
    manifest = read_manifest(target)
    assert manifest is not None
    (found,) = manifest.document["inputs"]
    assert (found["place"], found["revision"]) == ("hf://org/model", commit)
    assert {name: shard["sha256"] for name, shard in found["shards"].items()} == {
        name: hashlib.sha256((source / name).read_bytes()).hexdigest() for name in SHARDS
    }
    assert manifest.files["config.json"] == {
        "bytes": (source / "config.json").stat().st_size,
        "sha256": hashlib.sha256((source / "config.json").read_bytes()).hexdigest(),
        "from": {"input": 0, "file": "config.json"},
        "edited": False,
    }
    assert {entry["from"]["input"] for entry in manifest.files.values()} == {0}
    assert online.token not in manifest.text
    assert str(online.home) not in manifest.text


def test_the_manifest_of_a_repository_is_taken_up(online: HubServer, source: Path, tmp_path: Path) -> None:
    first = write(opened(source)[1].without(["t0"]).noting("drop", "t0"), tmp_path / "first")
    commit = online.publish("org/model", first)
    remote = open_checkpoint("hf://org/model")
    write(Draft.of(remote).without(["t1"]).noting("drop", "t1"), tmp_path / "second")
    manifest = read_manifest(tmp_path / "second")
    assert manifest is not None
    assert len(manifest.document["runs"]) == 2
    chain = traced(manifest, open_checkpoint(tmp_path / "second").tensors["t2"])
    assert [(one.place, one.revision) for one in chain] == [("hf://org/model", commit), ("source", None)]
    assert differences(manifest, tmp_path / "second").problems == ()


def test_a_command_names_a_snapshot_by_its_repository(tmp_path: Path) -> None:
    root = snapshot(tmp_path / "hub")
    run = ckpt("graft", root, "--from", root, "--tensors", "t0", "--no-verify", "--out", tmp_path / "out")
    assert run.returncode == 0, run.stderr
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    place = f"hf://org/the-name@{COMMIT}"
    assert manifest.run["command"] == ["ckpt", "graft", place, "--from", place, "--tensors", "t0"]
