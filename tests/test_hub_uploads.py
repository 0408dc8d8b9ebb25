"""The Hub of the tests takes uploads like the Hub: what huggingface_hub's own client sends, and what it is told."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from building import dense_llama
from hub import HubServer, Request
from hub.asking import Answer, ask
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    BadRequestError,
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

Operation = CommitOperationAdd | CommitOperationCopy | CommitOperationDelete
REPO = "someone/llama"
SHARD, OTHER = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards, documents, an empty file, a card, a text above 10 MB, and a file in a folder."""
    folder = dense_llama(tmp_path / "llama")
    (folder / "empty.txt").touch()
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A card\n")
    (folder / "vocab.txt").write_text("x" * (11 << 20))
    (folder / "assets").mkdir()
    (folder / "assets" / "one.txt").write_text("nested")
    return folder


@pytest.fixture
def api(online: HubServer) -> HfApi:
    return HfApi()


@pytest.fixture
def repo(api: HfApi) -> str:
    """A repository as the Hub makes it, with `.gitattributes`."""
    api.create_repo(REPO)
    return REPO


def puts(hub: HubServer) -> list[Request]:
    return [request for request in hub.counts if request.method == "PUT"]


def refused(status: int, call: Callable[[], object], kind: type[Exception] = HfHubHTTPError) -> str:
    """What the server said when it refused."""
    with pytest.raises(kind) as raised:
        call()
    assert isinstance(raised.value, HfHubHTTPError)
    assert raised.value.response.status_code == status
    return str(raised.value)


def test_a_repository_is_made_once_and_private_if_so_asked(online: HubServer, api: HfApi) -> None:
    url = api.create_repo("someone/secret", private=True)
    assert (str(url), url.repo_id) == (f"{online.url}/someone/secret", "someone/secret")
    assert api.model_info("someone/secret").private
    assert api.create_repo("someone/secret", exist_ok=True) == url
    assert "You already created this model repo" in refused(409, lambda: api.create_repo("someone/secret"))
    api.create_repo("open")
    assert not api.model_info("ckpt-tests/open").private
    assert list(online.files("ckpt-tests/open")) == [".gitattributes"]


def test_a_folder_arrives_in_one_commit(online: HubServer, api: HfApi, repo: str, folder: Path) -> None:
    info = api.upload_folder(repo_id=repo, folder_path=folder, commit_message="All", commit_description="of it")
    sent = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {name: online.read(repo, name) for name in online.files(repo) if name != ".gitattributes"} == sent
    assert online.commits(repo)[0] == (info.oid, "All", "of it")
    assert len(online.commits(repo)) == 2  # and the one that made .gitattributes
    large = {name for name, (_, sha256) in online.files(repo).items() if sha256}
    assert large == {SHARD, OTHER, "vocab.txt"}
    assert online.files(repo)[SHARD][1] == hashlib.sha256(sent[SHARD]).hexdigest()
    assert sorted(request.bytes_received for request in puts(online)) == sorted(len(sent[name]) for name in large)
    assert online.leaks == []


def test_a_large_file_of_no_pattern_gets_one(online: HubServer, api: HfApi, repo: str, folder: Path) -> None:
    api.upload_folder(repo_id=repo, folder_path=folder)
    lines = online.read(repo, ".gitattributes").decode().splitlines()
    assert [line for line in lines if not line.startswith(("*", "saved_model/"))] == [
        "vocab.txt filter=lfs diff=lfs merge=lfs -text"
    ]


def test_what_is_there_is_not_sent_again(online: HubServer, api: HfApi, repo: str, folder: Path) -> None:
    first = api.upload_folder(repo_id=repo, folder_path=folder)
    online.reset()
    assert api.upload_folder(repo_id=repo, folder_path=folder).oid == first.oid
    assert puts(online) == []
    assert not [request for request in online.counts if "/commit/" in request.path]


def test_a_large_object_goes_in_parts(online: HubServer, api: HfApi, repo: str, folder: Path) -> None:
    online.behave(part=100_000)
    api.upload_file(repo_id=repo, path_or_fileobj=folder / SHARD, path_in_repo=SHARD)
    size = (folder / SHARD).stat().st_size
    assert [request.bytes_received for request in puts(online)] == [100_000, 100_000, size - 200_000]
    assert online.read(repo, SHARD) == (folder / SHARD).read_bytes()


@pytest.mark.skipif(not hasattr(HfApi, "upload_large_folder"), reason="no longer in this huggingface_hub")
def test_a_large_folder_arrives(online: HubServer, api: HfApi, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        api.upload_large_folder(repo_id=REPO, folder_path=folder, repo_type="model", print_report=False, num_workers=1)
    assert online.read(REPO, SHARD) == (folder / SHARD).read_bytes()
    assert set(online.files(REPO)) >= {SHARD, OTHER, "config.json", "assets/one.txt"}


def test_a_commit_deletes_copies_and_adds_at_once(online: HubServer, api: HfApi, repo: str, folder: Path) -> None:
    before = api.upload_folder(repo_id=repo, folder_path=folder).oid
    operations: list[Operation] = [
        CommitOperationDelete("config.json"),
        CommitOperationDelete("assets/"),
        CommitOperationCopy(SHARD, "copied.safetensors"),
        CommitOperationCopy("generation_config.json", "copied.json"),
        CommitOperationAdd("new.json", b"{}"),
    ]
    api.create_commit(repo, operations, commit_message="Several", parent_commit=before)
    now, then = online.files(repo), online.files(repo, before)
    assert set(then) - set(now) == {"config.json", "assets/one.txt"}
    assert set(now) - set(then) == {"copied.safetensors", "copied.json", "new.json"}
    assert now["copied.safetensors"] == now[SHARD]
    assert online.read(repo, "copied.json") == online.read(repo, "generation_config.json")


def test_a_commit_that_cannot_be_whole_is_not_made(online: HubServer, api: HfApi, repo: str) -> None:
    head = online.commits(repo)[0][0]
    add = CommitOperationAdd("new.json", b"{}")
    api.create_commit(repo, [add], commit_message="Another was faster")
    moved = online.commits(repo)[0][0]

    def commit(*operations: Operation, **more: Any) -> Callable[[], object]:
        return lambda: api.create_commit(repo, operations, commit_message="No", **more)

    late = CommitOperationAdd("late.json", b"{}")
    assert "A commit has happened since" in refused(412, commit(late, parent_commit=head))
    absent = CommitOperationDelete("absent")
    assert "doesn't exist" in refused(404, commit(late, absent), EntryNotFoundError)
    refused(404, commit(late, CommitOperationDelete("absent/")), EntryNotFoundError)
    refused(404, commit(late, revision="nowhere"), RevisionNotFoundError)
    assert "Pull requests are disabled" in refused(403, commit(late, create_pr=True))
    assert online.commits(repo)[0][0] == moved
    commit(late, parent_commit=moved)()
    assert "late.json" in online.files(repo)


def lfs(hub: HubServer, operation: str, body: object) -> Answer:
    marks = {"Authorization": f"Bearer {hub.token}"}
    url = f"{hub.url}/{REPO}.git/info/lfs/objects/{operation}"
    return ask(url, marks, method="POST", body=json.dumps(body).encode())


def test_an_object_must_be_what_its_name_says(hub: HubServer, tmp_path: Path) -> None:
    hub.publish(REPO, dense_llama(tmp_path / "llama"))
    announced = {"oid": hashlib.sha256(b"right").hexdigest(), "size": 5}
    answer = json.loads(lfs(hub, "batch", {"operation": "upload", "objects": [announced]}).body)
    upload = answer["objects"][0]["actions"]["upload"]["href"]
    wrong = ask(upload, method="PUT", body=b"wrong")
    assert (wrong.status, b"SHA256Mismatch" in wrong.body) == (400, True)
    assert lfs(hub, "verify", announced).status == 404
    pointed = {"key": "lfsFile", "value": {"path": "a.bin", "algo": "sha256", **announced}}
    lines = [{"key": "header", "value": {"summary": "No"}}, pointed]
    body = b"\n".join(json.dumps(line).encode() for line in lines)
    url, marks = f"{hub.url}/api/models/{REPO}/commit/main", {"Authorization": f"Bearer {hub.token}"}
    assert b"does not exist: a.bin" in ask(url, marks, method="POST", body=body).body
    assert ask(upload, method="PUT", body=b"right").status == 200
    assert lfs(hub, "verify", announced).status == 200
    assert ask(url, marks, method="POST", body=body).status == 200
    assert hub.read(REPO, "a.bin") == b"right"
    assert ask(upload.partition("&Signature")[0], method="PUT", body=b"right").status == 403


def test_parts_must_make_what_was_announced(online: HubServer, api: HfApi, repo: str, folder: Path) -> None:
    online.behave(part=100_000)
    spoiled = online.fault("PUT .*partNumber=2", flip=7)
    refused(400, lambda: upload(api, repo, folder), BadRequestError)
    assert spoiled.fired == 1
    assert SHARD not in online.files(repo)
    upload(api, repo, folder)
    assert online.read(repo, SHARD) == (folder / SHARD).read_bytes()


def upload(api: HfApi, repo: str, folder: Path) -> None:
    """One shard. The error that came from the server, where the client wraps it in one of its own."""
    try:
        api.upload_file(repo_id=repo, path_or_fileobj=folder / SHARD, path_in_repo=SHARD)
    except RuntimeError as wrapped:
        raise (wrapped.__cause__ or wrapped) from wrapped


def test_who_may_write(online: HubServer, api: HfApi, repo: str) -> None:
    def write(token: str | bool) -> Callable[[], object]:
        return lambda: api.upload_file(repo_id=repo, path_or_fileobj=b"1", path_in_repo="one.txt", token=token)

    assert "write token" in refused(403, write(online.read_token))
    refused(403, write(online.stranger_token))
    refused(401, write("hf_unknown"))
    assert "You don't have the rights" in refused(403, lambda: api.create_repo("stranger/theirs"))
    refused(403, lambda: api.create_repo("someone/other", token=online.read_token))
    refused(
        404, lambda: api.upload_file(repo_id="no/such", path_or_fileobj=b"1", path_in_repo="a"), RepositoryNotFoundError
    )
    assert list(online.files(repo)) == [".gitattributes"]
    write(online.token)()
    assert online.read(repo, "one.txt") == b"1"


def test_branches_and_tags_are_made_and_deleted(online: HubServer, api: HfApi, repo: str) -> None:
    api.create_branch(repo, branch="dev/one")
    api.upload_file(repo_id=repo, path_or_fileobj=b"1", path_in_repo="one.txt", revision="dev/one")
    api.create_tag(repo, tag="v1", revision="dev/one")
    assert "one.txt" not in online.files(repo)
    assert "one.txt" in online.files(repo, "v1")
    refused(409, lambda: api.create_branch(repo, branch="dev/one"))
    api.delete_branch(repo, branch="dev/one")
    api.delete_tag(repo, tag="v1")
    refs = api.list_repo_refs(repo)
    assert ([branch.name for branch in refs.branches], refs.tags) == (["main"], [])


def test_ignored_files_stay_away(online: HubServer, api: HfApi, repo: str, folder: Path) -> None:
    (folder / ".gitignore").write_text("*.txt\nassets/\n")
    api.upload_folder(repo_id=repo, folder_path=folder)
    assert not [name for name in online.files(repo) if name.endswith(".txt")]


def test_a_deleted_repository_is_gone(online: HubServer, api: HfApi, repo: str) -> None:
    api.delete_repo(repo)
    refused(404, lambda: api.model_info(repo), RepositoryNotFoundError)
    refused(404, lambda: api.delete_repo(repo), RepositoryNotFoundError)
    api.delete_repo(repo, missing_ok=True)
