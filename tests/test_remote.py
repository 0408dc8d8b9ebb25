"""Checkpoints on the Hub, read from a Hub-compatible server on loopback by huggingface_hub and by range requests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from building import INDEX, edit_json, write_json
from drafting import SHARDS, contents, sample, with_work
from hub import HubServer

from checkpoint import (
    Address,
    Checkpoint,
    CkptError,
    Draft,
    Files,
    Refused,
    RemoteFile,
    Repo,
    UnreadableCheckpoint,
    apply_plan,
    open_checkpoint,
    plan_for,
    survey,
)
from checkpoint.layout import layout
from checkpoint.remote import listing, ranges
from verify import verify

REPO = "owner/name"
PLACE = f"hf://{REPO}"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between attempts are for servers that are far away."""
    monkeypatch.setattr(ranges, "FIRST_WAIT", 0)
    monkeypatch.setattr(listing, "FIRST_WAIT", 0)


@pytest.fixture
def remote(online: HubServer, source: Path) -> HubServer:
    """The Hub with the checkpoint of `source` as `owner/name`."""
    online.publish(REPO, source)
    return online


def codes(error: pytest.ExceptionInfo[CkptError]) -> list[str]:
    return [problem.code for problem in error.value.problems]


def tensors(checkpoint: Checkpoint) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    with Files() as files:
        return {name: (ref.dtype, ref.shape, bytes(files.read_tensor(ref))) for name, ref in checkpoint.tensors.items()}


@pytest.mark.parametrize(
    "text, repo, revision",
    [
        ("hf://owner/name", "owner/name", None),
        ("hf://models/owner/name", "owner/name", None),
        ("hf://gpt2", "gpt2", None),
        ("hf://owner/name@v1.0", "owner/name", "v1.0"),
        ("hf://owner/na.me-1@refs/pr/3", "owner/na.me-1", "refs/pr/3"),
        ("hf://o/n@" + "0" * 40, "o/n", "0" * 40),
    ],
)
def test_an_address_names_a_repository_and_a_revision(text: str, repo: str, revision: str | None) -> None:
    assert Address.parse(text) == Address(repo, revision)


@pytest.mark.parametrize(
    "text",
    [
        "hf://",
        "hf://owner/",
        "hf:///name",
        "hf://owner/name/config.json",
        "hf://owner/name@main/config.json",
        "hf://datasets/owner/name",
        "hf://owner/name@",
        "hf://owner/name@a@b",
        "hf://../name",
        "hf://owner/na me",
        "hf://owner/name\u202e",
        "https://huggingface.co/owner/name",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UnreadableCheckpoint) as error:
        Address.parse(text)
    assert codes(error) == ["address-invalid"]


def test_a_token_in_an_address_is_refused_and_not_shown_again() -> None:
    with pytest.raises(UnreadableCheckpoint) as error:
        Address.parse("hf://user:hf_secret@owner/name")
    assert "hf_secret" not in str(error.value)


def test_a_repository_reads_as_its_folder_does(remote: HubServer, source: Path) -> None:
    here, there = open_checkpoint(source), open_checkpoint(PLACE)
    assert isinstance(there.root, Repo)
    assert str(there.root) == f"{PLACE}@{remote.commits(REPO)[0][0]}"
    assert tensors(there) == tensors(here)
    assert list(there.tensors) == list(here.tensors)
    assert there.config == here.config
    assert there.index is not None
    assert here.index is not None
    assert there.index.text == here.index.text
    assert {n: p.read_bytes() for n, p in there.side_files.items()} == {
        n: p.read_bytes() for n, p in here.side_files.items()
    }
    assert layout(there, hashes=True) == layout(here, hashes=True)
    assert verify(there).findings == verify(here).findings


@pytest.mark.parametrize("private", [False, True])
def test_a_hub_that_relays_small_files_within_itself_reads_the_same(
    online: HubServer, source: Path, private: bool
) -> None:
    online.behave(relay=True)
    online.publish(REPO, source, private=private)
    assert tensors(open_checkpoint(PLACE)) == tensors(open_checkpoint(source))


def test_opening_fetches_headers_and_documents_and_no_tensor(online: HubServer, tmp_path: Path) -> None:
    from building import write_checkpoint

    big = {f"t{number}": ("BF16", (1024, 1024), None) for number in range(6)}
    online.publish(REPO, write_checkpoint(tmp_path / "big", big, {"model_type": "llama"}, shards=3))
    open_checkpoint(PLACE)
    assert not any("tokenizer" in request.path for request in online.counts)
    assert sum(request.bytes_sent for request in online.counts) < 3 * 16_500 + 10_000
    assert online.leaks == []


def test_a_header_that_is_longer_than_what_was_fetched_takes_a_second_request(
    online: HubServer, tmp_path: Path
) -> None:
    from building import write_checkpoint

    many = {f"model.layers.{number}.weight": ("I8", (1,), bytes([number % 256])) for number in range(700)}
    folder = write_checkpoint(tmp_path / "many", many, {"model_type": "llama"}, shards=1)
    online.publish(REPO, folder)
    assert tensors(open_checkpoint(PLACE)) == tensors(open_checkpoint(folder))


def test_a_revision_is_what_it_names_and_a_branch_that_moves_does_not_move_what_was_opened(
    remote: HubServer, source: Path
) -> None:
    first = remote.commits(REPO)[0][0]
    remote.tag(REPO, "v1", first)
    opened = open_checkpoint(PLACE)
    before = tensors(opened)
    changed = sample(source.parent / "changed")
    path = changed / SHARDS[0]
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    remote.publish(REPO, changed)
    assert tensors(opened) == before
    assert tensors(open_checkpoint(PLACE)) == tensors(open_checkpoint(changed)) != before
    for revision in (first, "v1"):
        assert tensors(open_checkpoint(f"{PLACE}@{revision}")) == before


def test_a_single_tensor_is_a_single_range(remote: HubServer) -> None:
    checkpoint = open_checkpoint(PLACE)
    ref = checkpoint.tensors["t4"]
    remote.reset()
    with Files() as files:
        files.read_tensor(ref)
        files.read_tensor(ref)
    ranges = [request.range for request in remote.counts if request.site == "cdn"]
    assert ranges == [f"bytes={ref.offset}-{ref.offset + ref.nbytes - 1}"] * 2
    assert len(remote.counts) == 3  # the storage's address is asked for once


def test_what_the_cache_has_is_read_from_there(remote: HubServer) -> None:
    from huggingface_hub import hf_hub_download

    hf_hub_download(REPO, SHARDS[1])
    remote.reset()
    checkpoint = open_checkpoint(PLACE)
    assert isinstance(checkpoint.tensors["t4"].path, Path)
    assert isinstance(checkpoint.tensors["t0"].path, RemoteFile)
    assert not any(SHARDS[1] in request.path for request in remote.counts)


def test_a_snapshot_of_the_cache_is_a_folder(remote: HubServer, source: Path) -> None:
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download(REPO))
    assert (folder / SHARDS[0]).is_symlink()
    assert tensors(open_checkpoint(folder)) == tensors(open_checkpoint(source))


def test_offline_the_cache_is_all_there_is(remote: HubServer, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants, snapshot_download

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UnreadableCheckpoint, match="cache"):
        open_checkpoint(PLACE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    snapshot_download(REPO)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    remote.reset()
    assert tensors(open_checkpoint(PLACE)) == tensors(open_checkpoint(source))
    assert remote.counts == []


@pytest.mark.parametrize(
    "fault, code",
    [
        ({"status": 401}, "hub-repository"),
        ({"status": 403}, "hub-forbidden"),
        ({"status": 404, "headers": {"X-Error-Code": "RepoNotFound"}}, "hub-repository"),
        ({"status": 404, "headers": {"X-Error-Code": "RevisionNotFound"}}, "hub-revision"),
        ({"status": 403, "headers": {"X-Error-Code": "GatedRepo"}}, "hub-gated"),
        ({"status": 418}, "hub-failed"),
        ({"status": 429}, "hub-busy"),
        ({"status": 503}, "hub-failed"),
        ({"redirect": "{self}"}, "hub-unreachable"),
    ],
)
def test_what_the_hub_refuses_is_told_with_the_way_out(remote: HubServer, fault: dict[str, Any], code: str) -> None:
    remote.fault("GET /api/models", times=None, **fault)
    with pytest.raises(UnreadableCheckpoint) as error:
        open_checkpoint(PLACE)
    assert codes(error) == [code]
    assert PLACE in str(error.value)
    assert remote.token not in str(error.value)


def test_a_repository_and_a_revision_that_are_not_there(remote: HubServer) -> None:
    with pytest.raises(UnreadableCheckpoint) as error:
        open_checkpoint("hf://owner/nothing")
    assert codes(error) == ["hub-repository"]
    with pytest.raises(UnreadableCheckpoint) as error:
        open_checkpoint(f"{PLACE}@nowhere")
    assert codes(error) == ["hub-revision"]


def test_private_repositories_need_a_token_that_may_read_them(
    online: HubServer, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    online.publish(REPO, source, private=True)
    assert open_checkpoint(PLACE).tensors
    for token in (online.stranger_token, ""):
        monkeypatch.setenv("HF_TOKEN", token)
        monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", token)
        with pytest.raises(UnreadableCheckpoint) as error:
            open_checkpoint(PLACE)
        assert codes(error) == ["hub-repository"]
        assert "HF_TOKEN" in str(error.value)


def test_a_server_that_is_not_there(online: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(UnreadableCheckpoint) as error:
        open_checkpoint(PLACE)
    assert codes(error) == ["hub-unreachable"]


PASSING = [
    {"match": "GET /api/models", "status": 503},
    {"match": "GET /api/models", "status": 429, "headers": {"Retry-After": "0"}},
    {"match": "resolve/.*index.json", "status": 502},
    {"match": "GET .*resolve/.*safetensors$", "status": 503, "times": 4},
    {"match": "GET .*resolve/.*safetensors", "status": 429, "headers": {"RateLimit": '"resolvers";r=0;t=0'}},
    {"match": "GET /blobs", "status": 500, "site": "cdn"},
    {"match": "GET /blobs", "status": 403, "site": "cdn", "skip": 3},
    {"match": "GET /blobs", "cut": 100, "site": "cdn", "times": 4},
    {"match": "GET /blobs", "short": 7, "site": "cdn", "times": 3},
]


@pytest.mark.parametrize("fault", PASSING, ids=json.dumps)
def test_what_passes_is_tried_again(remote: HubServer, source: Path, fault: dict[str, Any]) -> None:
    fired = remote.fault(**fault)
    assert tensors(open_checkpoint(PLACE)) == tensors(open_checkpoint(source))
    assert fired.fired > 0


def test_what_was_cut_off_goes_on_where_it_was(remote: HubServer) -> None:
    ref = open_checkpoint(PLACE).tensors["t4"]
    remote.reset()
    remote.fault("GET /blobs", cut=1000, site="cdn")
    with Files() as files:
        files.read_tensor(ref)
    first, second = (request.range for request in remote.counts if request.site == "cdn")
    assert first == f"bytes={ref.offset}-{ref.offset + ref.nbytes - 1}"
    assert second is not None
    assert second != first
    assert second.endswith(f"-{ref.offset + ref.nbytes - 1}")


@pytest.mark.parametrize(
    "fault, code",
    [
        ({"match": "GET /blobs", "ignore_range": True}, "hub-answer"),
        ({"match": "GET /blobs", "content_range": "bytes 0-9/10"}, "hub-answer"),
        ({"match": "GET .*resolve/.*safetensors", "status": 503}, "hub-failed"),
        ({"match": "GET /blobs", "cut": 0}, "hub-failed"),
        ({"match": "GET .*resolve/.*safetensors", "redirect": "file:///etc/passwd"}, "hub-unreachable"),
        ({"match": "GET .*resolve/.*safetensors", "redirect": "{self}"}, "hub-unreachable"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else value,
)
def test_answers_that_are_none_are_refused(remote: HubServer, fault: dict[str, Any], code: str) -> None:
    ref = open_checkpoint(PLACE).tensors["t4"]
    remote.fault(times=None, **fault)
    with Files() as files, pytest.raises(UnreadableCheckpoint) as error:
        files.read_tensor(ref)
    assert codes(error) == [code]


def test_a_redirect_to_another_host_gets_no_token(remote: HubServer) -> None:
    """`localhost` is another host than `127.0.0.1`, which the token is for."""
    remote.fault("GET .*resolve/.*safetensors", times=None, redirect=f"{remote.cdn}/steal")
    with pytest.raises(UnreadableCheckpoint):
        open_checkpoint(PLACE)
    stolen = [one for one in remote.log if "/steal" in one.path]
    assert stolen
    assert not any("authorization" in one.headers or remote.token in repr(one) for one in stolen)
    assert remote.leaks == []


def test_a_shard_that_is_stored_anew_under_the_same_name_is_noticed(remote: HubServer) -> None:
    ref = open_checkpoint(PLACE).tensors["t4"]
    remote.fault(
        "GET .*resolve/", times=None, status=302, redirect=f"{remote.cdn}/x", headers={"X-Linked-Etag": "0" * 64}
    )
    with Files() as files, pytest.raises(UnreadableCheckpoint):
        files.read_tensor(ref)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a path out of the folder": lambda folder: edit_json(
        folder / INDEX, lambda index: index["weight_map"].update(t0="../../x.safetensors")
    ),
    "a shard that is not there": lambda folder: (folder / SHARDS[1]).unlink(),
    "an index that is none": lambda folder: (folder / INDEX).write_text("[]"),
    "a header that lies": lambda folder: (folder / SHARDS[0]).write_bytes(b"\xff" * 64),
    "a shard of no bytes": lambda folder: (folder / SHARDS[0]).write_bytes(b""),
    "a header beyond the end": lambda folder: (folder / SHARDS[0]).write_bytes((1000).to_bytes(8, "little") + b"{}"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_wrong_in_a_repository_is_found_as_in_a_folder(online: HubServer, source: Path, kind: str) -> None:
    HOSTILE[kind](source)
    online.publish(REPO, source)
    here, there = survey(source), survey(PLACE)
    assert [problem.code for problem in there.problems] == [problem.code for problem in here.problems] != []
    for place in (source, PLACE):
        with pytest.raises(UnreadableCheckpoint):
            open_checkpoint(place)


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "a\\b", "bidi\u202e.json", "a//b", "x" * 300])
def test_names_that_no_folder_may_have_are_refused(remote: HubServer, name: str) -> None:
    listing = {"id": REPO, "sha": "0" * 40, "siblings": [{"rfilename": name, "size": 1, "blobId": "0" * 40}]}
    remote.fault("GET /api/models", times=None, status=200, body=json.dumps(listing))
    with pytest.raises(UnreadableCheckpoint) as error:
        open_checkpoint(PLACE)
    assert codes(error) == ["unsafe-name"]


def test_strays_and_stray_headers_are_seen_too(online: HubServer, source: Path) -> None:
    shutil.copy(source / SHARDS[0], source / "stray.safetensors")
    online.publish(REPO, source)
    checkpoint = survey(PLACE)
    assert checkpoint.strays == ("stray.safetensors",)
    assert list(checkpoint.stray_header("stray.safetensors").tensors) == ["t0", "t1", "t2"]


def test_large_side_files_are_compared_by_hash_and_not_downloaded(online: HubServer, source: Path) -> None:
    (source / "tokenizer.json").write_text(json.dumps({"version": "1.0", "pad": "x" * 11_000_000}))
    online.publish(REPO, source)
    online.reset()
    there = open_checkpoint(PLACE)
    assert not [f for f in verify(source, base=there, only=["X04"]).findings if f.place == "tokenizer.json"]
    assert not any("tokenizer.json" in request.path for request in online.counts)
    (source / "tokenizer.json").unlink()
    (source / "tokenizer.json").write_text(json.dumps({"version": "2.0", "pad": "x" * 11_000_000}))
    assert [f for f in verify(source, base=there, only=["X04"]).findings if f.place == "tokenizer.json"]


def test_a_draft_of_a_repository_writes_what_a_draft_of_its_folder_writes(
    remote: HubServer, source: Path, tmp_path: Path
) -> None:
    for place, out in ((source, "here"), (PLACE, "there")):
        draft = with_work(Draft.of(open_checkpoint(place)), "t4", step=500).without(["t1"])
        apply_plan(plan_for(draft, tmp_path / out), tmp_path / out, workers=2)
    assert weights(tmp_path / "there") == weights(tmp_path / "here")


def weights(folder: Path) -> dict[str, bytes]:
    """Everything but the manifest, which says where it came from."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "ckpt.manifest.json"}


def test_a_repository_is_not_changed_in_place(remote: HubServer) -> None:
    with pytest.raises(Refused) as error:
        plan_for(Draft.of(open_checkpoint(PLACE)), None)
    assert codes(error) == ["remote-in-place"]


@pytest.fixture
def budget(source: Path) -> int:
    """Disk for one shard, not for two."""
    return max((source / name).stat().st_size for name in SHARDS) + 100


def test_with_a_budget_shards_come_whole_and_no_more_of_them_at_once_than_fit(
    remote: HubServer, source: Path, tmp_path: Path, budget: int
) -> None:
    seen: list[int] = []

    def watch(shard: str, nbytes: int) -> None:
        spool = tmp_path / ".out.ckpt-spool"
        seen.append(sum(path.stat().st_size for path in spool.iterdir()) if spool.exists() else 0)

    draft = with_work(Draft.of(open_checkpoint(PLACE)), "t0", "t4", "t8", step=100)
    apply_plan(plan_for(draft, tmp_path / "out"), tmp_path / "out", workers=2, cache=budget, progress=watch)
    here = with_work(Draft.of(open_checkpoint(source)), "t0", "t4", "t8", step=100)
    apply_plan(plan_for(here, tmp_path / "here"), tmp_path / "here")
    assert weights(tmp_path / "out") == weights(tmp_path / "here")
    assert 0 < max(seen) <= budget
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "out", "source"]


def test_what_arrives_with_another_hash_is_refused_and_nothing_is_written(remote: HubServer, tmp_path: Path) -> None:
    draft = with_work(Draft.of(open_checkpoint(PLACE)), "t4", step=100)
    plan = plan_for(draft, tmp_path / "out")
    remote.fault("GET /blobs", flip=1, site="cdn", times=None)
    for cache in (0, 1 << 30):  # moved whole, and downloaded whole
        with pytest.raises(UnreadableCheckpoint) as error:
            apply_plan(plan, tmp_path / "out", cache=cache)
        assert codes(error) == ["hash-differs"]
        assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("cache", [0, 1 << 30])
def test_a_run_that_the_hub_fails_is_gone_on_with(remote: HubServer, source: Path, tmp_path: Path, cache: int) -> None:
    def plan() -> Any:
        draft = with_work(Draft.of(open_checkpoint(PLACE)), "t0", "t4", "t8", step=100)
        return plan_for(draft, tmp_path / "out")

    first = plan()
    remote.fault(f"GET /blobs.*{SHARDS[2]}", status=503, site="cdn", times=None)
    with pytest.raises(UnreadableCheckpoint) as error:
        apply_plan(first, tmp_path / "out", workers=1, cache=cache)
    assert codes(error) == ["hub-failed"]
    assert "goes on" in error.value.__notes__[0]
    assert not (tmp_path / "out").exists()
    remote.heal()
    again = plan()
    remote.reset()
    apply_plan(again, tmp_path / "out", workers=1, cache=cache)
    assert not any(SHARDS[0] in request.path for request in remote.counts)
    here = with_work(Draft.of(open_checkpoint(source)), "t0", "t4", "t8", step=100)
    apply_plan(plan_for(here, tmp_path / "here"), tmp_path / "here")
    assert weights(tmp_path / "out") == weights(tmp_path / "here")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "out", "source"]


def test_a_download_that_was_cut_off_goes_on_where_it_was(
    remote: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from checkpoint.remote import spool

    monkeypatch.setattr(spool, "CHUNK", 512)
    monkeypatch.setattr(spool, "AT_ONCE", 1)
    draft = with_work(Draft.of(open_checkpoint(PLACE)), "t4", step=100)
    plan = plan_for(draft, tmp_path / "out")
    remote.fault(f"GET /blobs.*{SHARDS[1]}", status=503, site="cdn", times=None, skip=4)
    with pytest.raises(UnreadableCheckpoint):
        apply_plan(plan, tmp_path / "out", cache=1 << 30)
    (part,) = (tmp_path / ".out.ckpt-spool").iterdir()
    assert part.stat().st_size == 4 * 512
    remote.heal()
    remote.reset()
    apply_plan(plan, tmp_path / "out", cache=1 << 30)
    ranges = [r.range for r in remote.counts if r.site == "cdn" and SHARDS[1] in r.path]
    assert ranges[0] == "bytes=2048-2559"


def test_a_config_of_a_repository_that_is_too_large_is_not_downloaded(
    online: HubServer, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from checkpoint.remote import shelf

    write_json(source / "config.json", {"model_type": "llama", "pad": "x" * 2000})
    online.publish(REPO, source)
    monkeypatch.setattr(shelf, "MAX_DOCUMENT", 1000)
    with pytest.raises(UnreadableCheckpoint, match="over 1,000 bytes"):
        open_checkpoint(PLACE)
    assert not any("config.json" in request.path for request in online.counts)
    assert contents(source)
