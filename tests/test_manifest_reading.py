"""A manifest may come from anywhere: it is a manifest in every part, or it is refused with all that is wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drafting import opened, sample, with_work, write

from checkpoint import UnreadableCheckpoint, open_checkpoint
from checkpoint.folder import MANIFEST
from checkpoint.manifest import differences, read_manifest, traced, value
from checkpoint.manifest.text import manifest_text

Edit = Callable[[dict[str, Any]], object]

REWRITTEN, LINKED = "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("manifest")
    return write(with_work(opened(sample(room / "source"))[1], "t0").noting("edit", ""), room / "target")


@pytest.fixture
def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    return copy.deepcopy(found)


def refusal(root: Path, content: str | bytes) -> str:
    root.mkdir(exist_ok=True)
    (root / MANIFEST).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UnreadableCheckpoint) as caught:
        read_manifest(root)
    return str(caught.value)


def test_a_folder_without_one_has_none(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None


def test_what_was_written_reads_back_and_writes_the_same_bytes(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest.text == (folder / MANIFEST).read_text()


def test_other_layouts_of_the_same_json_are_read(document: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    assert read_manifest(tmp_path) == read_manifest(folder)


def test_the_text_is_what_the_json_module_reads(document: dict[str, Any]) -> None:
    odd = {'a "quoted"\n name\u2028': [None, 0], "\U0001f600": ["0" * 64, 0]}
    document["shards"][REWRITTEN]["tensors"] = odd
    text = manifest_text(document)
    assert json.loads(text) == document
    assert text.isascii()


ROWS: dict[str, Any] = {
    "no list": {"t": 3},
    "one value": {"t": ["0" * 64]},
    "three values": {"t": ["0" * 64, 0, 0]},
    "a short digest": {"t": ["0" * 63, 0]},
    "a long digest": {"t": ["0" * 65, 0]},
    "two digests of odd lengths": {"t": ["0" * 63, 0], "u": ["0" * 65, 0]},
    "capitals": {"t": ["A" * 64, 0]},
    "a line break": {"t": ["0" * 63 + "\n", 0]},
    "a number for a digest": {"t": [0, 0]},
    "a negative origin": {"t": ["0" * 64, -1]},
    "a broken origin": {"t": ["0" * 64, 0.5]},
    "true for an origin": {"t": ["0" * 64, True]},
    "no origin": {"t": ["0" * 64, None]},
    "a nameless tensor": {"": ["0" * 64, 0]},
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_rows_that_are_none_are_refused(rows: Any, document: dict[str, Any], tmp_path: Path) -> None:
    document["shards"][REWRITTEN]["tensors"] |= rows
    assert f'shards["{REWRITTEN}"].tensors' in refusal(tmp_path, json.dumps(document))


EDITS: dict[str, tuple[Edit, str]] = {
    "another version": (lambda d: d.update(manifest=2), "manifest: 2 is not 1"),
    "an unknown field": (lambda d: d.update(note="hello"), "note"),
    "a missing field": (lambda d: d.pop("origins"), "'origins' is a required property"),
    "no run": (lambda d: d.update(runs=[]), "runs"),
    "a field in a run": (lambda d: d["runs"][0].update(when="today"), "when"),
    "an input beyond": (lambda d: d["runs"][0].update(inputs=[7]), "input 7, of which there is none"),
    "an operation beyond": (lambda d: d["runs"][0].update(operations=[7]), "operation 7, of which there is none"),
    "a run of the future": (lambda d: d["inputs"][0].update(run=0), "earlier run 0, of which there is none"),
    "a role beyond": (lambda d: d["operations"][0].update(inputs={"base": 9}), "input 9, of which there is none"),
    "an origin's input": (lambda d: d["origins"][0].update(input=9), "input 9, of which there is none"),
    "an origin's operation": (lambda d: d["origins"][0].update(operation=9), "operation 9, of which there is none"),
    "a circle": (lambda d: d["origins"][0].update(was=0), "earlier origin 0, of which there is none"),
    "a row's origin": (lambda d: d["shards"][REWRITTEN]["tensors"].update(t=[None, 99]), "origin 99, of which"),
    "a shard's origin": (lambda d: d["shards"][LINKED].update(origin=99), "origin 99, of which there is none"),
    "a file's input": (lambda d: d["files"]["config.json"].update({"from": {"input": 9, "file": "x"}}), "input 9"),
    "a size below 0": (lambda d: d["shards"][LINKED].update(bytes=-1), "-1"),
    "a path out": (lambda d: d["files"].update({"../../etc/passwd": d["files"]["config.json"]}), "etc/passwd"),
    "a path through": (lambda d: d["files"].update({"a/../b": d["files"]["config.json"]}), "a/../b"),
    "an absolute path": (lambda d: d["files"].update({"/etc/passwd": d["files"]["config.json"]}), "etc/passwd"),
    "a shard elsewhere": (lambda d: d["shards"].update({"../x.safetensors": d["shards"][LINKED]}), "x.safetensors"),
    "a shard of another kind": (lambda d: d["shards"].update({"x.bin": d["shards"][LINKED]}), "x.bin"),
    "an action of its own": (lambda d: d["shards"][LINKED].update(action="sold"), "sold"),
    "a revision that is none": (lambda d: d["inputs"][0].update(revision="main"), "main"),
    "an absolute place with a token": (lambda d: d["inputs"][0].update(token="hf_x"), "token"),
    "parameters of their own": (
        lambda d: d["operations"][0].update(operation="graft-mtp", parameters={"prefix": "mtp."}), "required property",
    ),
    "waivers without a reason": (lambda d: d.update(waivers=[{"rule": "F10", "place": None}]), "reason"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "found"), EDITS.values(), ids=EDITS)
def test_what_is_no_manifest_is_refused(edit: Edit, found: str, document: dict[str, Any], tmp_path: Path) -> None:
    edit(document)
    assert found in refusal(tmp_path, json.dumps(document))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "not JSON"),
        ("[]", "a JSON list"),
        ('{"manifest": 1, "manifest": 1}', "key occurs twice"),
        ('{"manifest": NaN}', "NaN"),
        (b"\xff{}", "not JSON"),
        ('{"a":' * 200 + "1" + "}" * 200, "nested more than"),
        ('{"a":' * 100_000, "not JSON"),
    ],
    ids=["empty", "a list", "a key twice", "NaN", "no UTF-8", "deep", "deeper"],
)
def test_what_is_no_plain_json_is_refused(content: str | bytes, found: str, tmp_path: Path) -> None:
    assert found in refusal(tmp_path, content)


def test_one_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value, "MAX_MANIFEST", 100)
    assert "over 100 bytes" in refusal(tmp_path, " " * 101)


def test_a_link_to_a_file_elsewhere_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).symlink_to(folder / MANIFEST)
    with pytest.raises(UnreadableCheckpoint, match="not a regular file inside the folder"):
        read_manifest(tmp_path)


def test_all_that_is_wrong_is_told_at_once_and_not_without_end(document: dict[str, Any], tmp_path: Path) -> None:
    document["shards"][REWRITTEN]["tensors"] = {f"t{number}": ["x", 0] for number in range(50_000)}
    document["extra"] = 1
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(UnreadableCheckpoint) as caught:
        read_manifest(tmp_path)
    assert 2 <= len(caught.value.problems) <= value.VERSION * 20
    assert "extra" in str(caught.value)


def test_names_that_would_drive_a_terminal_are_escaped(document: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    document["inputs"][0]["place"] = "\x1b[2Jevil\u202e"
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    from checkpoint import escape

    said = escape(str(traced(manifest, open_checkpoint(folder).tensors["t3"])[0]))
    assert "\x1b" not in said
    assert "\u202e" not in said


def test_a_file_that_links_out_of_the_folder_is_not_hashed(folder: Path, tmp_path: Path) -> None:
    import shutil

    copied, secret = tmp_path / "copy", tmp_path / "secret"
    shutil.copytree(folder, copied)
    manifest = read_manifest(copied)
    assert manifest is not None
    secret.write_bytes((copied / "config.json").read_bytes())
    (copied / "config.json").unlink()
    (copied / "config.json").symlink_to(secret)
    assert [problem.code for problem in differences(manifest, copied).problems] == ["unsafe-name"]
