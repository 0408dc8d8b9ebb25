"""`ckpt upload` when something goes wrong: on the way, on the Hub, in the folder meanwhile."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from building import LLAMA, llama_entries, without, write_checkpoint
from hub import HubServer
from uploads import (
    CONFIG,
    MANIFEST,
    REPO,
    SENT,
    SHARDS,
    assert_tells_no_token,
    commits,
    here,
    is_private,
    meanwhile,
    sent_objects,
    upload,
    writes,
    written,
)

from checkpoint import CkptError, Refused, survey
from ckpt.hub.arrival import header_differences
from ckpt.hub.faults import HubFailed, redacted

PREUPLOAD = "POST /api/models/.*/preupload/"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound packed Llama with a manifest."""
    return written(tmp_path / "export")


def failed(folder: Path, *arguments: str) -> tuple[str, str]:
    """Code and text of the one problem that the upload ends with."""
    with pytest.raises(CkptError) as caught:
        here(folder, *arguments)
    (problem,) = caught.value.problems
    assert problem.remedy or problem.expected, "no way out"
    return problem.code, str(caught.value)


def test_without_a_token_nothing_is_even_read(hub: HubServer, folder: Path) -> None:
    done = upload(hub, folder, token=None)
    assert done.returncode == 3
    assert "hf://someone/model: there is no token. Log in with `hf auth login`, or set HF_TOKEN" in done.stderr
    assert (done.stdout, hub.counts) == ("", [])


def test_a_token_that_the_hub_does_not_know(hub: HubServer, folder: Path) -> None:
    done = upload(hub, folder, token="hf_nobodysTokenAtAll1234", HF_DEBUG="1")
    assert done.returncode == 3
    assert "the Hub does not take this token (401). Log in with" in done.stderr
    assert "Traceback" not in done.stderr
    assert "hf_nobodysTokenAtAll1234" not in done.stdout + done.stderr


def test_a_token_that_may_only_read(hub: HubServer, folder: Path) -> None:
    done = upload(hub, folder, "--json", token=hub.read_token)
    assert done.returncode == 3
    document = json.loads(done.stdout[done.stdout.index("{") :])
    (problem,) = document["problems"]
    assert problem["code"] == "hub-forbidden"
    assert problem["found"].startswith("this token may not create a repository for someone (403)")


def test_what_the_hub_says_back_is_shown_without_the_token(hub: HubServer, folder: Path) -> None:
    echoed = f"Bearer {hub.token} of https://me:secret@host/x?X-Amz-Signature=abc is not welcome"
    hub.fault("POST /api/models/.*/commit/", status=400, headers={"X-Error-Message": echoed}, times=None)
    done = upload(hub, folder, HF_DEBUG="1")
    assert done.returncode == 3
    assert "cannot commit: the Hub answers 400: Bearer *** of https://***@host/x?*** is not welcome" in done.stderr
    assert "secret" not in done.stdout + done.stderr


def test_no_token_is_in_any_output_file_or_request_to_the_storage(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    done = upload(hub, folder, "--report", report, "--json", HF_DEBUG="1")  # the helper looks at what it says
    assert done.returncode == 0, done.stderr
    for name in hub.files(REPO):
        assert_tells_no_token(hub, hub.read(REPO, name).decode(errors="replace"))
    assert_tells_no_token(hub, report.read_text() + "".join(map(str, hub.commits(REPO))))
    assert_tells_no_token(hub, (folder / MANIFEST).read_text())
    assert hub.leaks == []


@pytest.mark.parametrize(
    "text, safe",
    [
        ("hf_abcdefgh123 and hf_x", "*** and hf_x"),
        ("https://user:pw@huggingface.co/a/b", "https://***@huggingface.co/a/b"),
        ("PUT https://s3/x?sig=1&t=2 failed", "PUT https://s3/x?*** failed"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_secrets_are_taken_out_of_what_others_say(text: str, safe: str) -> None:
    assert redacted(text) == safe


def test_a_namespace_of_someone_else(online: HubServer, folder: Path) -> None:
    with pytest.raises(HubFailed, match=r"may not create a repository for stranger \(403\)"):
        here(folder, repo="stranger/model")


def test_a_private_repository_of_someone_else_looks_like_none(
    online: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    online.publish(REPO, folder, private=True)
    monkeypatch.setenv("HF_TOKEN", online.stranger_token)
    code, said = failed(folder)
    assert code == "hub-forbidden"
    assert online.stranger_token not in said


@pytest.mark.parametrize(
    "what, status, code",
    [
        ("GET /api/models/someone/model", 401, "hub-token"),
        ("GET /api/models/someone/model", 403, "hub-forbidden"),
        ("GET /api/models/someone/model", 429, "hub-busy"),
        ("GET /api/models/someone/model", 503, "hub-failed"),
        ("POST /api/models/.*/preupload/", 404, "hub-repository"),
        ("POST /api/models/.*/commit/", 403, "hub-forbidden"),
        ("POST /api/models/.*/commit/", 409, "hub-conflict"),
        ("POST /api/models/.*/commit/", 413, "hub-refused"),
        ("POST /api/models/.*/commit/", 500, "hub-failed"),
        ("PUT /uploads/", 403, "hub-storage"),
    ],
)
def test_each_answer_of_the_hub_is_one_problem_with_a_way_out(
    what: str, status: int, code: str, online: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    (folder.parent / "before").mkdir()
    commit = online.publish(REPO, folder.parent / "before")
    online.fault(what, status=status, times=None)
    assert failed(folder)[0] == code
    assert online.commits(REPO)[0][0] == commit


def test_a_hub_that_is_not_there(online: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://user:secret@127.0.0.1:9")
    code, said = failed(folder)
    assert code == "hub-unreachable"
    assert "cannot look at it: cannot be reached (Connect" in said
    assert "secret" not in said


def test_offline_mode_is_named(online: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert failed(folder)[0] == "hub-offline"
    assert online.counts == []


@pytest.mark.parametrize(
    "what, status",
    [("GET /api/models/someone/model", 503), ("POST /api/models/.*/commit/", 503), ("POST .*/commit/", 429)],
)
def test_what_passes_is_waited_for(what: str, status: int, online: HubServer, folder: Path) -> None:
    fault = online.fault(what, status=status)
    assert here(folder, "--quiet") == 0
    assert (fault.fired, commits(online)) == (1, 1)


def test_a_repository_whose_creation_was_not_answered_is_taken(online: HubServer, folder: Path) -> None:
    fault = online.fault("POST /api/repos/create", cut=0)
    assert here(folder) == 0
    assert (fault.fired, is_private(online)) == (1, True)


def test_a_commit_whose_answer_is_lost_is_not_made_twice(online: HubServer, folder: Path) -> None:
    fault = online.fault("POST /api/models/.*/commit/", cut=0)
    assert here(folder) == 0
    assert fault.fired == 1
    assert len(online.commits(REPO)) == 2  # the repository's first, and ours


def test_a_commit_of_someone_else_meanwhile_is_not_written_over(
    online: HubServer, folder: Path, tmp_path: Path
) -> None:
    online.publish(REPO, folder)
    (folder / "notes.txt").write_text("ours")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "README.md").write_text("theirs")
    with meanwhile(online, PREUPLOAD, lambda: online.publish(REPO, theirs)):
        code, said = failed(folder)
    assert code == "hub-moved"
    assert "has a new commit since this upload began (412). Run the same command again" in said
    assert set(online.files(REPO)) == {"README.md"}
    assert here(folder) == 0
    assert set(online.files(REPO)) - {".gitattributes"} == SENT | {"README.md", "notes.txt"}


def test_a_shard_that_is_spoiled_on_its_way_is_not_taken(online: HubServer, folder: Path) -> None:
    online.fault(f"PUT /uploads/{REPO}/", flip=100, times=None)
    code, said = failed(folder)
    assert (code, "does not match" in said) == ("hub-storage", True)
    assert commits(online) == 0


def test_a_small_file_that_is_stored_otherwise_is_noticed(
    online: HubServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    online.publish(REPO, folder)
    (folder / "notes.txt").write_text("as it was")
    fault = online.fault("POST /api/models/.*/commit/", rot=3)
    assert (here(folder), fault.fired) == (1, 1)
    said = capsys.readouterr().err
    assert "ckpt: what arrived is not what was checked: " in said
    assert "  - notes.txt: 9 bytes, " in said
    newest, before = (commit[0] for commit in online.commits(REPO)[:2])
    assert f"Nobody should load commit {newest}: run the upload again, or go back to {before}" in said


def test_a_shard_whose_header_comes_back_otherwise_is_noticed(
    online: HubServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = (folder / SHARDS[0]).read_bytes().index(b"BF16")
    fault = online.fault(f"PUT /uploads/{REPO}/", rot=header, times=None)
    assert here(folder, "--json") == 1
    assert fault.fired >= 1
    said = json.loads(capsys.readouterr().out)
    assert {one["file"] for one in said["differences"] if one["code"] != "finding-differs"} & set(SHARDS)


def test_findings_that_only_the_hubs_copy_has_are_noticed(
    online: HubServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = (folder / CONFIG).read_text().replace('"vocab_size": 64', '"vocab_size": 46')
    online.fault(f"GET /{REPO}/resolve/.*/config.json", status=200, body=other, times=None)
    assert here(folder, "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert {one["code"] for one in said["differences"]} == {"finding-differs"}
    assert any("I02" in one["found"] for one in said["differences"])


def test_tensors_are_compared_by_dtype_shape_and_place(tmp_path: Path) -> None:
    entries = llama_entries()
    ours = survey(write_checkpoint(tmp_path / "ours", entries, LLAMA))
    assert list(header_differences(ours, survey(ours.root))) == []  # type: ignore[arg-type]
    name = "model.norm.weight"
    others = {
        "dtype": entries | {name: ("F16", (128,), None)},
        "shape": entries | {name: ("BF16", (64, 2), None)},
        "order": {name: entries[name]} | without(entries, name),
        "gone": without(entries, name),
    }
    for what, other in others.items():
        theirs = survey(write_checkpoint(tmp_path / what, other, LLAMA))
        assert name in {problem.tensor for problem in header_differences(ours, theirs)}, what


def test_what_stays_on_the_hub_is_judged_beside_what_is_sent(
    online: HubServer, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "pytorch_model.bin").write_bytes(b"x" * 100)
    before = online.publish(REPO, other)
    assert here(folder, "--strict") == 1
    said = capsys.readouterr()
    assert "F12 pytorch_model.bin: weights in another format" in said.out
    assert "refused, nothing was sent: this stands against the checkpoint beside what hf://someone/model" in said.err
    assert online.commits(REPO)[0][0] == before
    assert here(folder) == 0  # a warning


@pytest.mark.parametrize("name", [SHARDS[0], CONFIG, "tokenizer.json"])
def test_a_file_that_changes_after_it_was_judged_is_not_published(name: str, online: HubServer, folder: Path) -> None:
    def change() -> None:
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(content)

    with meanwhile(online, PREUPLOAD, change), pytest.raises(Refused, match=f"{name}: changed"):
        here(folder)
    assert commits(online) == 0


def test_a_file_that_is_replaced_by_its_like_is_noticed_too(online: HubServer, folder: Path) -> None:
    def replace() -> None:
        (folder / ".copy").write_bytes((folder / SHARDS[0]).read_bytes())
        os.replace(folder / ".copy", folder / SHARDS[0])

    with meanwhile(online, PREUPLOAD, replace), pytest.raises(Refused, match=f"{SHARDS[0]}: changed since it was"):
        here(folder)
    assert commits(online) == 0


def test_a_gitignore_on_the_hub_cannot_hide_a_shard(online: HubServer, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / ".gitignore").write_text("*.safetensors\n")
    online.publish(REPO, other)
    with pytest.raises(Refused, match="gitignore") as caught:
        here(folder)
    assert [problem.file for problem in caught.value.problems] == list(SHARDS)
    assert (commits(online), sent_objects(online)) == (0, 0)


def test_what_was_committed_and_cannot_be_looked_at_is_said(
    online: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    online.fault("GET /api/models/.*/tree/", status=500, times=None, skip=1)
    with pytest.raises(CkptError) as caught:
        here(folder)
    assert "was made, but not checked: run the same command again" in caught.value.headline
    assert commits(online) == 1


def test_a_dry_run_needs_no_token(
    online: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    online.publish(REPO, folder)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name)
    assert here(folder, "--dry-run") == 0
    assert writes(online) == []
    assert "2 files, " in capsys.readouterr().out
