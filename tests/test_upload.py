"""`ckpt upload`: what reaches the Hub, what stays away from it, and in which order."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import qwen
from building import INDEX, dense_llama, edit_json, pack, without, write_checkpoint, write_json
from hub import HubServer
from uploads import (
    CONFIG,
    MANIFEST,
    REPO,
    REPORT,
    ROOT,
    SENT,
    SHARDS,
    command,
    commits,
    document,
    here,
    is_private,
    run,
    sent_objects,
    upload,
    wait_for,
    waivers,
    writes,
    written,
)

from checkpoint import UnreadableCheckpoint
from checkpoint.manifest import differences, read_manifest
from schemas import validate
from verify import BadWaiver

REASON = "the head is published in a repository of its own"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound packed Llama with a manifest."""
    return written(tmp_path / "export")


@pytest.fixture
def headless(tmp_path: Path) -> Path:
    """A small Qwen MoE with packed experts and without its MTP head, with a manifest."""
    stored = pack(qwen.entries(), qwen.body_experts)
    kept = without(stored, *(name for name in stored if name.startswith("mtp.")))
    source = write_checkpoint(tmp_path / "source", kept, qwen.config(*qwen.SOUND))
    write_json(source / "preprocessor_config.json", {"image_processor_type": "Qwen2VLImageProcessorFast"})
    (source / "chat_template.jinja").write_text("{{ messages }}")
    return written(tmp_path / "headless", source)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_sound_checkpoint_arrives_whole_in_one_commit(hub: HubServer, folder: Path) -> None:
    done = upload(hub, folder)
    assert done.returncode == 0, done.stderr
    assert set(hub.files(REPO)) == SENT | {".gitattributes"}
    assert all(hub.read(REPO, name) == (folder / name).read_bytes() for name in SENT - {REPORT})
    assert [hub.files(REPO)[shard][1] for shard in SHARDS] == [sha256(folder / shard) for shard in SHARDS]
    (newest, title, _), (_, first, _) = hub.commits(REPO)
    assert (title, first) == ("Upload a checkpoint with ckpt", "initial commit")
    assert f"committed {newest}: {hub.url}/{REPO}/commit/{newest}\n" in done.stdout
    assert "what arrived is what was checked: 9 files by size and hash, 49 tensors by header\n" in done.stdout
    assert is_private(hub)
    assert hub.leaks == []


def test_what_was_uploaded_is_what_its_manifest_says(online: HubServer, folder: Path) -> None:
    source = json.loads((folder / MANIFEST).read_text())
    assert [shard["sha256"] for shard in source["shards"].values()] == [None, None]
    assert here(folder) == 0
    manifest = document(online, MANIFEST)
    assert {name: shard["sha256"] for name, shard in manifest["shards"].items()} == {
        name: sha256(folder / name) for name in SHARDS
    }
    assert manifest["verdict"]["counts"] == {"error": 0, "warning": 0, "note": 0}
    assert (manifest["verdict"]["level"], manifest["waivers"]) == ("headers", [])
    assert validate(manifest, "manifest") == []
    loaded = read_manifest(folder)
    assert loaded is not None
    assert differences(loaded, folder).problems == ()


def test_an_export_without_its_mtp_head_is_refused_and_nothing_is_sent(hub: HubServer, headless: Path) -> None:
    before = (headless / MANIFEST).read_bytes()
    done = upload(hub, headless)
    assert done.returncode == 1
    assert "  E M01 " in done.stdout
    assert "refused, nothing was sent: M01" in done.stderr
    assert hub.counts == []
    assert (headless / MANIFEST).read_bytes() == before


def test_every_rule_that_forbids_is_named_to_machines_too(
    online: HubServer, headless: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (headless / "preprocessor_config.json").unlink()
    assert here(headless, "--json", "--report", tmp_path / "report.sarif") == 1
    said = json.loads(capsys.readouterr().out)
    errors = {one["rule"] for one in said["report"]["findings"] if one["severity"] == "error"}
    assert (said["allowed"], errors) == (False, {"M01", "X07"})
    results = json.loads((tmp_path / "report.sarif").read_text())["runs"][0]["results"]
    assert errors == {result["ruleId"] for result in results}
    assert online.counts == []


def test_what_is_waived_passes_and_repository_and_manifest_say_why(
    hub: HubServer, headless: Path, tmp_path: Path
) -> None:
    consent = waivers(
        tmp_path / "waivers.json",
        {"rule": "M01", "reason": REASON},
        {"rule": "X05", "reason": "not needed"},
    )
    done = upload(hub, headless, "--waivers", consent)
    assert done.returncode == 0, done.stderr
    assert f": {REASON}\n" in done.stdout
    assert "a waiver that matches nothing: X05 (not needed)\n" in done.stdout
    manifest, report = document(hub, MANIFEST), document(hub, REPORT)
    (waived,) = [one for one in report["findings"] if one["rule"] == "M01"]
    assert waived["waived"] == REASON
    assert {"rule": "M01", "place": waived["place"], "reason": REASON} in manifest["waivers"]
    assert [entry for entry in manifest["waivers"] if entry["rule"] == "X05"] == []
    assert REASON in hub.commits(REPO)[0][2]
    assert (validate(manifest, "manifest"), validate(report, "report")) == ([], [])


def test_a_waiver_that_names_no_rule_stops_the_upload(online: HubServer, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadWaiver, match="'M99' names no rule"):
        here(folder, "--waivers", waivers(tmp_path / "w.json", {"rule": "M99", "reason": "x"}))
    assert online.counts == []


def test_a_shard_that_cannot_be_read_cannot_be_waived(online: HubServer, folder: Path, tmp_path: Path) -> None:
    (folder / SHARDS[1]).unlink()
    rules = [{"rule": rule, "reason": "x"} for rule in ("F01", "F02", "F03", "F04", "F05", "F06", "F07", "F08", "F09")]
    inventory = [{"rule": f"{letter}{number:02}", "reason": "x"} for letter in "I" for number in range(1, 12)]
    consent = waivers(tmp_path / "w.json", *rules, *inventory)
    with pytest.raises(Exception, match="not in the folder") as caught:
        here(folder, "--waivers", consent)
    assert "cannot be waived" in caught.value.headline  # type: ignore[attr-defined]
    assert writes(online) == []


def test_the_report_says_nothing_of_this_machine(online: HubServer, folder: Path, tmp_path: Path) -> None:
    base = dense_llama(tmp_path / "original")
    assert here(folder, "--base", base, "--level", "headers") == 0
    assert (document(online, REPORT)["checkpoint"], document(online, REPORT)["base"]) == (f"hf://{REPO}", "original")
    assert document(online, MANIFEST)["verdict"]["base"] == "original"
    for name in (REPORT, MANIFEST):
        assert str(tmp_path).encode() not in online.read(REPO, name)


def test_with_a_base_everything_is_read_unless_a_level_is_given(
    online: HubServer, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = dense_llama(tmp_path / "original")
    assert here(folder, "--base", base, "--dry-run", "--json") == 1  # its scales are zeros
    assert json.loads(capsys.readouterr().out)["report"]["level"] == "full"


def test_a_dry_run_lists_everything_and_sends_nothing(hub: HubServer, folder: Path) -> None:
    before = (folder / MANIFEST).read_bytes()
    done = upload(hub, folder, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {one["name"]: one["change"] for one in said["files"]} == dict.fromkeys(SENT, "new")
    assert {one["name"]: one["bytes"] for one in said["files"]}[SHARDS[0]] == (folder / SHARDS[0]).stat().st_size
    assert (said["exists"], said["dry_run"]) == (False, True)
    assert writes(hub) == []
    assert (folder / MANIFEST).read_bytes() == before


def test_a_dry_run_says_what_is_there_already_and_what_would_go(
    online: HubServer, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = Path(shutil.copytree(folder, tmp_path / "older"))
    shutil.copy(folder / SHARDS[0], older / "model-00003-of-00003.safetensors")
    write_json(older / "tokenizer.json", {"version": "0.9"})
    (older / "README.md").write_text("# By hand\n")
    online.publish(REPO, older)
    assert here(folder, "--dry-run", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    changes = {one["name"]: one["change"] for one in said["files"]}
    assert {name: changes[name] for name in (SHARDS[0], SHARDS[1], CONFIG, "tokenizer.json", REPORT)} == {
        SHARDS[0]: "unchanged",
        SHARDS[1]: "unchanged",
        CONFIG: "unchanged",
        "tokenizer.json": "changed",
        REPORT: "new",
    }
    assert (said["deleted"], said["kept"]) == (["model-00003-of-00003.safetensors"], ["README.md"])
    assert writes(online) == []


@pytest.mark.parametrize("option, private", [(None, True), ("--private", True), ("--public", False)])
def test_a_new_repository_is_private_unless_it_shall_be_public(
    option: str | None, private: bool, online: HubServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert here(folder, *([option] if option else [])) == 0
    assert is_private(online) == private
    assert f"created hf://{REPO}, {'private' if private else 'public'}\n" in capsys.readouterr().out


@pytest.mark.parametrize("private, option", [(True, "--public"), (False, "--private")])
def test_the_visibility_of_a_repository_that_exists_stays(
    private: bool, option: str, online: HubServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    online.publish(REPO, folder, private=private)
    assert here(folder, option) == 0
    assert is_private(online) == private
    assert f"exists and is {'private' if private else 'public'}; it stays so" in capsys.readouterr().err


def test_what_is_there_already_is_not_sent_again(
    online: HubServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert here(folder, "--quiet") == 0
    assert capsys.readouterr().out == ""
    online.reset()
    assert here(folder) == 0
    said = capsys.readouterr().out
    assert "0 files, 0 B; 9 there already" in said
    assert "what arrived is what was checked" in said
    assert writes(online) == []


def test_after_a_graft_only_what_it_wrote_is_sent(
    online: HubServer, headless: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_checkpoint(tmp_path / "base", qwen.entries(), qwen.CONFIG)
    consent = waivers(tmp_path / "w.json", {"rule": "M01", "reason": REASON})
    assert here(headless, "--waivers", consent) == 0
    assert run("graft-mtp", headless, "--base", base, "--in-place") == 0
    online.reset()
    capsys.readouterr()
    assert here(headless, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    sent = {one["name"] for one in said["files"] if one["change"] != "unchanged"}
    assert sent == {"model-mtp.safetensors", INDEX, CONFIG, MANIFEST, REPORT}
    assert (sent_objects(online), commits(online), said["deleted"]) == (1, 1, [])
    assert document(online, MANIFEST)["waivers"] == []


def test_shards_of_an_earlier_checkpoint_go_in_the_same_commit_and_other_files_stay(
    online: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = written(tmp_path / "older")
    for name in ("README.md", "notes.txt"):
        (older / name).write_text("by hand\n")
    assert here(older) == 0
    lone = dense_llama(tmp_path / "lone", num_hidden_layers=2)
    shutil.copy(lone / SHARDS[0], lone / "model-00001-of-00009.safetensors")
    edit_json(lone / INDEX, lambda index: _renamed(index, SHARDS[0], "model-00001-of-00009.safetensors"))
    (lone / SHARDS[0]).unlink()
    online.reset()
    assert here(lone) == 0
    assert commits(online) == 1
    there = set(online.files(REPO))
    assert {"README.md", "notes.txt", "model-00001-of-00009.safetensors", SHARDS[1]} <= there
    assert not there & {SHARDS[0], MANIFEST}  # the manifest told of another checkpoint
    assert "kept on the Hub: README.md, notes.txt" in capsys.readouterr().out


def _renamed(index: dict[str, Any], before: str, after: str) -> None:
    index["weight_map"] = {name: after if file == before else file for name, file in index["weight_map"].items()}


def test_files_that_are_no_part_of_the_checkpoint_are_not_sent(
    online: HubServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (".env", "notes.txt~", "model.py", "half.incomplete"):
        (folder / name).write_text("x")
    for name in (".git/config", ".cache/huggingface/x", "__pycache__/model.cpython-311.pyc", "assets/logo.svg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    assert here(folder) == 0
    assert set(online.files(REPO)) - SENT == {".gitattributes", "model.py", "assets/logo.svg"}
    out = capsys.readouterr().out
    assert "not sent: .env, __pycache__/model.cpython-311.pyc, half.incomplete, notes.txt~" in out


def test_a_report_can_be_left_out_and_an_old_one_then_goes(online: HubServer, folder: Path) -> None:
    assert here(folder) == 0
    assert here(folder, "--no-report") == 0
    assert REPORT not in online.files(REPO)


def test_no_manifest_is_invented(online: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert here(dense_llama(tmp_path / "plain")) == 0
    assert MANIFEST not in online.files(REPO)
    assert "ckpt.manifest.json is not there" in capsys.readouterr().out


def test_a_signature_is_sent_only_where_it_still_holds(
    online: HubServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "model.sig").write_text("over the manifest as it was written")
    assert here(folder) == 0  # completes the manifest
    assert "model.sig is not sent: the manifest was completed since" in capsys.readouterr().out
    assert "model.sig" not in online.files(REPO)
    (folder / "model.sig").write_text("over the manifest as it is now")
    assert here(folder) == 0
    assert online.read(REPO, "model.sig") == b"over the manifest as it is now"


def test_large_files_may_go_in_parts(online: HubServer, folder: Path) -> None:
    online.behave(part=50_000)
    assert here(folder) == 0
    assert online.files(REPO)[SHARDS[0]][1] == sha256(folder / SHARDS[0])
    assert sent_objects(online) == 5  # three parts and two


def test_a_branch_is_made_and_main_stays(online: HubServer, folder: Path) -> None:
    main = online.publish(REPO, folder)
    (folder / "notes.txt").write_text("of the branch")
    assert here(folder, "--revision", "int4") == 0
    assert "notes.txt" in online.files(REPO, "int4")
    assert online.commits(REPO)[0][0] == main


def test_a_shard_that_is_not_the_manifests_is_refused(online: HubServer, folder: Path) -> None:
    assert here(folder) == 0
    content = bytearray((folder / SHARDS[0]).read_bytes())
    content[-1] ^= 1
    (folder / SHARDS[0]).write_bytes(content)
    online.reset()
    with pytest.raises(Exception, match="what the manifest says"):
        here(folder)
    assert writes(online) == []


def test_a_card_written_by_hand_is_in_the_manifest_as_edited(online: HubServer, folder: Path) -> None:
    (folder / "README.md").write_text("# By hand\n")
    assert here(folder) == 0
    entry = document(online, MANIFEST)["files"]["README.md"]
    assert (entry["edited"], entry["from"], entry["sha256"]) == (True, None, sha256(folder / "README.md"))


def test_an_interrupted_upload_goes_on_where_it_stopped(hub: HubServer, folder: Path) -> None:
    hub.fault(f"PUT /uploads/{REPO}/{sha256(folder / SHARDS[1])}", stall=60)
    child = subprocess.Popen(command(folder, "--quiet"), env={**os.environ, **hub.env()}, cwd=ROOT)
    wait_for(lambda: sent_objects(hub) == 1)
    child.kill()
    assert child.wait() != 0
    assert set(hub.files(REPO)) == {".gitattributes"}
    hub.reset()
    assert upload(hub, folder).returncode == 0
    assert sent_objects(hub) == 1


def test_what_is_unreadable_is_not_uploaded(online: HubServer, tmp_path: Path) -> None:
    with pytest.raises(UnreadableCheckpoint):
        here(tmp_path)
    assert online.counts == []
