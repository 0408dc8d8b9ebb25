"""`ckpt manifest`: what was tampered with is found, what was not computed is said, and where tensors came from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from building import INDEX
from test_cli import ckpt

from checkpoint import open_checkpoint
from checkpoint.folder import MANIFEST
from checkpoint.manifest import differences, read_manifest

Tampering = Callable[[Path], object]

HEAD = "lm_head.weight_packed"


@pytest.fixture(scope="module")
def written(qwen_moe_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ckpt quantize`, then `ckpt int8-head`, by their command lines."""
    room = tmp_path_factory.mktemp("written")
    for arguments in (
        ("quantize", qwen_moe_base, "--preset", "experts-int4-g32", "--workers", "1", "--out", room / "experts"),
        ("int8-head", room / "experts", "--group-size", "channel", "--no-verify", "--json", "--out", room / "out"),
    ):
        run = ckpt(*arguments)
        assert run.returncode == 0, run.stderr
    return room / "out"


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "copy")
    return tmp_path / "copy"


def manifest(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return ckpt("manifest", *arguments)


def problems(folder: Path, **more: Any) -> list[tuple[str, str | None, str | None]]:
    told = read_manifest(folder)
    assert told is not None
    return [(one.code, one.file, one.tensor) for one in differences(told, folder, **more).problems]


def flip(folder: Path, tensor: str) -> str:
    """Change one bit of a tensor; the shard it is in."""
    ref = open_checkpoint(folder).tensors[tensor]
    assert isinstance(ref.path, Path)
    with ref.path.open("r+b") as file:
        file.seek(ref.offset + ref.nbytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    return ref.path.name


# What the commands leave


def test_a_command_line_is_kept_without_what_changes_no_byte(written: Path, qwen_moe_base: Path) -> None:
    told = read_manifest(written)
    assert told is not None
    assert [run["command"] for run in told.document["runs"]] == [
        ["ckpt", "quantize", qwen_moe_base.name, "--preset", "experts-int4-g32"],
        ["ckpt", "int8-head", "experts", "--group-size", "channel"],
    ]


def test_no_absolute_path_and_no_token_is_in_it(written: Path, qwen_moe_base: Path) -> None:
    text = (written / MANIFEST).read_text()
    for place in (written.parent, qwen_moe_base.parent, Path.home()):
        assert f'"{place}' not in text
        assert f" {place}/" not in text


def test_the_same_command_gives_the_same_bytes(qwen_moe_base: Path, tmp_path: Path) -> None:
    rooms = [tmp_path / name / "out" for name in ("one", "two")]
    for room, workers in zip(rooms, ("1", "4"), strict=True):
        room.parent.mkdir()
        run = ckpt(
            "graft-mtp", qwen_moe_base, "--base", qwen_moe_base, "--workers", workers, "--out", room, "--no-verify"
        )
        assert run.returncode == 0, run.stderr
    assert len({(room / MANIFEST).read_bytes() for room in rooms}) == 1


def test_a_dry_run_writes_none(qwen_moe_base: Path, tmp_path: Path) -> None:
    assert ckpt("ignore", qwen_moe_base, "derive", "--dry-run").returncode == 3  # it is not quantized
    assert ckpt("int8-head", tmp_path, "--dry-run").returncode == 3
    assert (
        ckpt("graft-mtp", qwen_moe_base, "--base", qwen_moe_base, "--dry-run", "--out", tmp_path / "o").returncode == 0
    )
    assert list(tmp_path.iterdir()) == []
    assert not (qwen_moe_base / MANIFEST).exists()


def test_a_recipe_is_told_with_what_it_says(qwen_moe_base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "secret-place"
    folder.mkdir()
    group = "{targets: ['re:.*experts.*'], bits: 4, group_size: 32}"
    (folder / "mine.yaml").write_text(f"title: Mine\nbase: {qwen_moe_base}\nquantize:\n  groups:\n    - {group}\n")
    run = ckpt("run", folder / "mine.yaml", "--out", tmp_path / "out", "--no-verify")
    assert run.returncode == 0, run.stderr
    told = read_manifest(tmp_path / "out")
    assert told is not None
    assert told.run["command"] == ["ckpt", "run", "mine.yaml"]
    assert told.run["recipe"]["name"] == "mine"
    assert told.run["recipe"]["says"]["base"] == qwen_moe_base.name
    assert told.run["recipe"]["says"]["quantize"]["groups"][0]["bits"] == 4
    assert "secret-place" not in told.text


# verify


def test_a_folder_as_it_was_written_passes(written: Path) -> None:
    run = manifest("verify", written)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "as written" in run.stdout
    document = json.loads(manifest("verify", written, "--json").stdout)
    assert (document["ok"], document["problems"], document["unknown"]) == (True, [], [])
    assert document["hashed_bytes"] == sum(path.stat().st_size for path in written.rglob("*") if path.name != MANIFEST)


def test_a_copy_and_a_download_pass(copied: Path) -> None:
    """The Hub adds .gitattributes, huggingface_hub its notes."""
    (copied / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (copied / ".cache" / "huggingface").mkdir(parents=True)
    (copied / ".cache" / "huggingface" / "note").write_text("x")
    (copied / "model.sig").write_text("{}")
    assert problems(copied) == []


def _swap(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes((folder / "vocab.json").read_bytes())


def _same_size(folder: Path) -> None:
    raw = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(bytes(reversed(raw)))


def _edit_index(folder: Path) -> None:
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace("model-00001-of", "model-00002-of", 1))


def _retitle(folder: Path) -> None:
    """Another tensor name in a header, every length as it was."""
    path = folder / "model-00005-of-00005.safetensors"
    raw = path.read_bytes()
    path.unlink()
    path.write_bytes(raw.replace(b"lm_head.weight_scale", b"ml_head.weight_scale"))


def _extra_shard(folder: Path) -> None:
    shutil.copy(folder / "model-00005-of-00005.safetensors", folder / "consolidated.safetensors")


TAMPERINGS: dict[str, tuple[Tampering, list[tuple[str, str | None, str | None]]]] = {
    "a side file swapped for another": (_swap, [("size-changed", "tokenizer.json", None)]),
    "a side file of the same size": (_same_size, [("content-changed", "tokenizer.json", None)]),
    "a file removed": (lambda f: (f / "merges.txt").unlink(), [("file-missing", "merges.txt", None)]),
    "a file added": (lambda f: (f / "payload.bin").write_text("x"), [("file-extra", "payload.bin", None)]),
    "a file in a folder": (
        lambda f: ((f / "sub").mkdir(), (f / "sub" / "x.py").write_text("x")), [("file-extra", "sub/x.py", None)],
    ),
    "a shard added": (_extra_shard, [("file-extra", "consolidated.safetensors", None)]),
    "a shard removed": (
        lambda f: (f / "model-00002-of-00005.safetensors").unlink(),
        [("file-missing", "model-00002-of-00005.safetensors", None)],
    ),
    "an index that was edited": (_edit_index, [("content-changed", INDEX, None)]),
    "a header that was edited": (_retitle, [("header-changed", "model-00005-of-00005.safetensors", None)]),
    "a shard cut short": (
        lambda f: os.truncate(f / "model-00001-of-00005.safetensors", 1000),
        [("size-changed", "model-00001-of-00005.safetensors", None)],
    ),
    "one bit of the head": (
        lambda f: flip(f, HEAD), [("content-changed", "model-00005-of-00005.safetensors", HEAD)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tamper", "found"), TAMPERINGS.values(), ids=TAMPERINGS)
def test_tampering_is_found_and_named(
    tamper: Tampering, found: list[tuple[str, str | None, str | None]], copied: Path
) -> None:
    tamper(copied)
    assert problems(copied, workers=2) == found


def test_a_flipped_bit_is_found_in_a_shard_whose_hash_was_carried_over(copied: Path) -> None:
    norm = "model.language_model.layers.0.input_layernorm.weight"
    told = read_manifest(copied)
    shard = flip(copied, norm)
    assert told is not None
    assert told.shards[shard]["action"] == "linked"
    assert problems(copied) == [("content-changed", shard, norm)]


def test_all_differences_are_listed_at_once_with_exit_code_1(copied: Path) -> None:
    shard = flip(copied, HEAD)
    (copied / "merges.txt").unlink()
    (copied / "extra.txt").write_text("x")
    run = manifest("verify", copied)
    assert run.returncode == 1
    for said in (
        f"content-changed: {shard}: {HEAD}",
        "file-missing: merges.txt",
        "file-extra: extra.txt",
        "3 differences",
    ):
        assert said in run.stdout
    document = json.loads(manifest("verify", copied, "--json").stdout)
    assert sorted(one["code"] for one in document["problems"]) == ["content-changed", "file-extra", "file-missing"]


def test_headers_alone_find_what_headers_show(copied: Path) -> None:
    flip(copied, HEAD)
    assert problems(copied, headers=True) == []
    run = manifest("verify", copied, "--headers")
    assert run.returncode == 0
    assert "weights were not read" in run.stdout
    _retitle(copied)
    assert problems(copied, headers=True) == [("header-changed", "model-00005-of-00005.safetensors", None)]


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "has no ckpt.manifest.json"), ("{}", "is a required property"), ("[", "not JSON")],
    ids=["absent", "empty", "no JSON"],
)
def test_without_a_manifest_that_can_be_read_nothing_is_judged(content: str | None, said: str, copied: Path) -> None:
    (copied / MANIFEST).unlink()
    if content is not None:
        (copied / MANIFEST).write_text(content)
    run = manifest("verify", copied)
    assert run.returncode == 3
    assert said in run.stderr


def test_a_manifest_that_was_edited_against_its_schema_is_refused(copied: Path) -> None:
    text = (copied / MANIFEST).read_text()
    (copied / MANIFEST).write_text(text.replace('"action": "linked"', '"action": "trusted"', 1))
    run = manifest("verify", copied)
    assert run.returncode == 3
    assert "trusted" in run.stderr


# complete


@pytest.fixture
def unread(qwen_moe_base: Path, tmp_path: Path) -> Path:
    """All shards linked, of a source without a manifest: no hash of theirs is known."""
    run = ckpt("graft-mtp", qwen_moe_base, "--base", qwen_moe_base, "--out", tmp_path / "unread", "--no-verify")
    assert run.returncode == 0, run.stderr
    return tmp_path / "unread"


def test_what_was_never_read_is_said_and_can_be_completed(unread: Path) -> None:
    run = manifest("verify", unread)
    assert run.returncode == 0
    assert "not known: model-00001-of-00005.safetensors" in run.stdout
    times = {path: path.stat().st_mtime_ns for path in unread.iterdir() if path.name != MANIFEST}
    assert manifest("complete", unread).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in times} == times
    told = read_manifest(unread)
    assert told is not None
    assert {name: shard["sha256"] for name, shard in told.shards.items()} == {
        name: hashlib.sha256((unread / name).read_bytes()).hexdigest() for name in told.shards
    }
    assert "not known" not in manifest("verify", unread).stdout


def test_a_folder_that_is_not_what_was_written_is_not_completed(unread: Path) -> None:
    before = (unread / MANIFEST).read_bytes()
    (unread / "README.md").write_text("changed")
    run = manifest("complete", unread)
    assert run.returncode == 3
    assert "README.md" in run.stderr
    assert (unread / MANIFEST).read_bytes() == before
    assert manifest("complete", unread, "--edited", "README.md").returncode == 0
    assert problems(unread) == []


def test_a_shard_is_no_side_file_that_one_edits(unread: Path) -> None:
    run = manifest("complete", unread, "--edited", "model-00001-of-00005.safetensors", "--edited", "../x")
    assert run.returncode == 3
    assert "is a shard" in run.stderr
    assert "../x: is no side file" in run.stderr


def test_hashes_that_were_not_asked_for_are_completed_with_those_of_tensors(written: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = ckpt(
        "graft", written, "--from", written, "--tensors", "re:.*norm.weight", "--no-hash", "--no-verify", "--out", out
    )
    assert run.returncode == 0, run.stderr
    told = read_manifest(out)
    assert told is not None
    whole = told.completed(out)
    assert all(row[0] for name in whole.shards for row in whole.rows(name).values())
    whole.write(out)
    assert problems(out) == []


# show


def test_a_summary_says_what_went_in_and_what_was_done(written: Path, qwen_moe_base: Path) -> None:
    run = manifest("show", written)
    assert run.returncode == 0, run.stderr
    for said in (
        f"run 1: ckpt quantize {qwen_moe_base.name} --preset experts-int4-g32",
        "run 2: ckpt int8-head experts --group-size channel",
        "written by run 1",
        '"group_size": "channel"',
        "rewritten  model-00005-of-00005.safetensors",
    ):
        assert said in run.stdout
    assert json.loads(manifest("show", written, "--json").stdout) == json.loads((written / MANIFEST).read_text())


def test_a_tensor_is_traced_through_both_commands(written: Path, qwen_moe_base: Path) -> None:
    run = manifest("show", written, HEAD)
    assert run.returncode == 0, run.stderr
    first, *rest = [line for line in run.stdout.splitlines() if "<-" in line]
    assert "computed by int8-head (INT8 channel, fp32 maths) from lm_head.weight" in first
    assert rest[-1].endswith(f"of {qwen_moe_base.name}")
    document = json.loads(manifest("show", written, HEAD, "--json").stdout)["tensors"][HEAD]
    assert [one["operation"] for one in document["origins"]] == ["int8-head", None]
    assert document["sha256"]


def test_a_tensor_that_is_not_there_is_refused(written: Path) -> None:
    run = manifest("show", written, "lm_head.weight")
    assert run.returncode == 3
    assert "no such tensor" in run.stderr
