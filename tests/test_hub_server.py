"""The Hub of the tests reads like the Hub: what huggingface_hub's own client makes of it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from building import dense_llama, entries_of
from hub import HubServer
from hub.asking import ask
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

REPO = "someone/llama"
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards of zeros but for the last bytes of the first, documents, and a file in a folder."""
    folder = dense_llama(tmp_path / "llama")
    with (folder / SHARD).open("r+b") as file:
        file.seek(-256, os.SEEK_END)
        file.write(bytes(range(256)))
    (folder / "assets").mkdir()
    (folder / "assets" / "ünï code.txt").write_text("nested")
    return folder


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["config.json", SHARD, "assets/ünï code.txt"])
def test_a_file_arrives_as_it_was_published(online: HubServer, folder: Path, name: str) -> None:
    online.publish(REPO, folder)
    assert Path(hf_hub_download(REPO, name)).read_bytes() == (folder / name).read_bytes()
    assert online.read(REPO, name) == (folder / name).read_bytes()


def test_a_snapshot_is_the_folder_and_no_token_goes_to_the_cdn(online: HubServer, folder: Path) -> None:
    commit = online.publish(REPO, folder)
    snapshot = Path(snapshot_download(REPO))
    assert snapshot.name == commit
    assert {name: (snapshot / name).read_bytes() for name in names(snapshot)} == {
        name: (folder / name).read_bytes() for name in names(folder)
    }
    assert {request.authorized for request in online.counts if request.site == "api"} == {True}
    assert [request.authorized for request in online.counts if request.site == "cdn"] == [False, False]
    assert online.leaks == []
    # The proof is worth something only where a token that did go there is seen.
    ask(f"{online.cdn}/", {"Authorization": f"Bearer {online.token}"})
    assert len(online.leaks) == 1


def test_metadata_are_sizes_hashes_and_the_oids_of_git(online: HubServer, folder: Path) -> None:
    commit = online.publish(REPO, folder)
    info = HfApi().model_info(REPO, files_metadata=True)
    files = {file.rfilename: file for file in info.siblings or ()}
    assert (info.sha, info.private, info.gated, set(files)) == (commit, False, False, names(folder))
    assert {name: file.size for name, file in files.items()} == {n: (folder / n).stat().st_size for n in files}
    pointer = (
        "version https://git-lfs.github.com/spec/v1\n"
        f"oid sha256:{hashlib.sha256((folder / SHARD).read_bytes()).hexdigest()}\n"
        f"size {(folder / SHARD).stat().st_size}\n"
    )
    (folder.parent / "pointer").write_text(pointer)
    lfs = files[SHARD].lfs
    assert lfs is not None
    assert (lfs.sha256 in pointer, lfs.size, lfs.pointer_size) == (True, files[SHARD].size, len(pointer))
    assert files["config.json"].lfs is None
    assert files["config.json"].blob_id == git_hash(folder / "config.json")
    assert files[SHARD].blob_id == git_hash(folder.parent / "pointer")
    assert online.files(REPO)[SHARD] == (lfs.size, lfs.sha256)
    assert online.files(REPO)["config.json"] == ((folder / "config.json").stat().st_size, None)


def git_hash(path: Path) -> str:
    return subprocess.run(["git", "hash-object", path], check=True, capture_output=True, text=True).stdout.strip()


def test_a_tree_comes_page_by_page(online: HubServer, folder: Path) -> None:
    commit = online.publish(REPO, folder, message="First")
    online.behave(page=3)
    listed = {item.path: item for item in HfApi().list_repo_tree(REPO, recursive=True, expand=True)}
    assert set(listed) == names(folder) | {"assets"}
    assert listed["config.json"].last_commit is not None
    assert (listed["config.json"].last_commit.oid, listed["config.json"].last_commit.title) == (commit, "First")
    assert len([request for request in online.counts if "/tree/" in request.path]) == 3  # of 8 entries
    assert {item.path for item in HfApi().list_repo_tree(REPO)} == {n for n in listed if "/" not in n}
    assert [item.path for item in HfApi().list_repo_tree(REPO, "assets")] == ["assets/ünï code.txt"]
    with pytest.raises(EntryNotFoundError):
        list(HfApi().list_repo_tree(REPO, "absent"))


def test_only_paths_that_exist_are_described(online: HubServer, folder: Path) -> None:
    online.publish(REPO, folder)
    described = HfApi().get_paths_info(REPO, [SHARD, "assets", "absent"])
    assert [item.path for item in described] == [SHARD, "assets"]


def test_headers_are_read_by_range(online: HubServer, folder: Path) -> None:
    online.publish(REPO, folder)
    metadata = HfApi().get_safetensors_metadata(REPO)
    assert set(metadata.weight_map) == set(entries_of(folder))
    read = [request for request in online.counts if request.site == "cdn"]
    assert {(request.status, request.range, request.bytes_sent) for request in read} == {
        (206, "bytes=0-100000", 100_001)
    }


def test_a_file_system_reads_what_it_is_asked_for(online: HubServer, folder: Path) -> None:
    online.publish(REPO, folder)
    end = (folder / SHARD).stat().st_size
    with HfFileSystem().open(f"{REPO}/{SHARD}", cache_type="none") as file:
        file.seek(end - 256)
        assert file.read(16) == bytes(range(16))
    assert [request.bytes_sent for request in online.counts if request.site == "cdn"] == [16]
    assert HfFileSystem().cat_file(f"{REPO}/{SHARD}", start=end - 10, end=end) == bytes(range(246, 256))


@pytest.mark.parametrize("name", ["config.json", SHARD], ids=["regular", "large"])
@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ("bytes=0-3", 206, slice(0, 4)),
        ("bytes=5-", 206, slice(5, None)),
        ("bytes=-7", 206, slice(-7, None)),
        ("bytes=3-99999999", 206, slice(3, None)),
        ("bytes=0-0", 206, slice(0, 1)),
        ("bytes=99999999-", 416, slice(0, 0)),
        ("bytes=-0", 416, slice(0, 0)),
        ("bytes=0-1,4-5", 200, slice(None)),  # several ranges may be answered by the whole, RFC 9110 14.2
        ("lines=1-2", 200, slice(None)),
    ],
)
def test_ranges(hub: HubServer, folder: Path, name: str, asked: str, status: int, part: slice) -> None:
    hub.publish(REPO, folder)
    data = (folder / name).read_bytes()
    answer = ask(place(hub, name), {"Range": asked})
    assert (answer.status, answer.body) == (status, data[part])
    if status == 206:
        start, stop, _ = part.indices(len(data))
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(data)}"
    elif status == 416:
        assert answer.headers["content-range"] == f"bytes */{len(data)}"
    etag = answer.headers["etag"]
    assert ask(place(hub, name), {"Range": "bytes=0-3", "If-Range": etag}).status == 206
    assert ask(place(hub, name), {"Range": "bytes=0-3", "If-Range": '"other"'}).status == 200


def place(hub: HubServer, name: str) -> str:
    """Where the bytes of a file are, behind a redirect if there is one."""
    url = f"{hub.url}/{REPO}/resolve/main/{name}"
    return ask(url, method="HEAD").headers.get("location", url)


def test_a_small_file_comes_by_a_detour_as_on_the_hub_of_today(online: HubServer, folder: Path) -> None:
    commit = online.publish(REPO, folder, private=True)
    online.behave(relay=True)
    assert Path(hf_hub_download(REPO, "config.json")).read_bytes() == (folder / "config.json").read_bytes()
    head, there, *_ = online.counts
    assert (head.method, head.status) == ("HEAD", 307)
    assert there.path.startswith(f"/api/resolve-cache/models/{REPO}/{commit}/config.json")
    assert ask(f"{online.url}{there.path}").status == 401


def test_a_large_file_is_told_by_its_redirect(hub: HubServer, folder: Path) -> None:
    commit = hub.publish(REPO, folder)
    sha256 = hashlib.sha256((folder / SHARD).read_bytes()).hexdigest()
    head = ask(f"{hub.url}/{REPO}/resolve/main/{SHARD}", method="HEAD")
    assert head.status == 302
    assert head.headers["x-linked-etag"] == f'"{sha256}"'
    assert head.headers["x-linked-size"] == str((folder / SHARD).stat().st_size)
    assert (head.headers["x-repo-commit"], head.headers["accept-ranges"]) == (commit, "bytes")
    assert head.headers["location"].startswith(f"{hub.cdn}/")
    unsigned = head.headers["location"].partition("?")[0]
    assert ask(unsigned, {"Authorization": f"Bearer {hub.token}"}).status == 403
    assert ask(head.headers["location"] + "0").status == 403


def test_a_hash_that_is_known_is_believed(hub: HubServer, folder: Path) -> None:
    hub.publish(REPO, folder, oids={SHARD: "ab" * 32}, hash_shards=False)
    assert hub.files(REPO)[SHARD][1] == "ab" * 32


def test_main_moves_and_the_old_commit_stays(online: HubServer, folder: Path) -> None:
    first = online.publish(REPO, folder, message="One")
    online.tag(REPO, "v1")
    (folder / "config.json").write_text("{}")
    (folder / SHARD).unlink()
    second = online.publish(REPO, folder, message="Two")
    api = HfApi()
    assert [commit.commit_id for commit in api.list_repo_commits(REPO)] == [second, first]
    assert api.model_info(REPO).sha == second
    assert {api.model_info(REPO, revision=name).sha for name in ("v1", first, first[:8], "refs/tags/v1")} == {first}
    assert [(tag.name, tag.target_commit) for tag in api.list_repo_refs(REPO).tags] == [("v1", first)]
    assert Path(hf_hub_download(REPO, "config.json")).read_text() == "{}"
    assert "llama" in Path(hf_hub_download(REPO, "config.json", revision=first)).read_text()
    assert Path(hf_hub_download(REPO, SHARD, revision="v1")).stat().st_size > 100_000
    with pytest.raises(EntryNotFoundError):
        hf_hub_download(REPO, SHARD)


def test_a_shard_written_to_in_place_is_no_longer_served(hub: HubServer, folder: Path) -> None:
    hub.publish(REPO, folder)
    url = place(hub, SHARD)
    assert ask(url, {"Range": "bytes=0-3"}).status == 206
    with (folder / SHARD).open("ab") as file:
        file.write(b"more")
    answer = ask(url, {"Range": "bytes=0-3"})
    assert (answer.status, b"written to after it was published" in answer.body) == (500, True)


Read = Callable[[HfApi], object]
INFO: Read = lambda api: api.model_info(REPO)  # noqa: E731
LOAD: Read = lambda api: api.hf_hub_download(REPO, "config.json", force_download=True)  # noqa: E731


@pytest.mark.parametrize(
    ("kind", "who", "read", "error", "status"),
    [
        ("private", "token", LOAD, None, 200),
        ("private", "read_token", LOAD, None, 200),
        ("private", "stranger_token", INFO, RepositoryNotFoundError, 404),
        ("private", None, INFO, RepositoryNotFoundError, 401),
        ("gated", "read_token", LOAD, None, 200),
        ("gated", "stranger_token", INFO, None, 200),
        ("gated", "stranger_token", lambda api: api.get_hf_file_metadata(url=file_of(api)), GatedRepoError, 403),
        ("gated", None, lambda api: api.get_hf_file_metadata(url=file_of(api)), GatedRepoError, 401),
        ("public", None, LOAD, None, 200),
        ("public", "unknown", INFO, HfHubHTTPError, 401),
        ("public", "token", lambda api: api.model_info("no/such"), RepositoryNotFoundError, 404),
        ("public", None, lambda api: api.model_info("no/such"), RepositoryNotFoundError, 401),
        ("public", None, lambda api: api.model_info(REPO, revision="no"), RevisionNotFoundError, 404),
        ("public", None, lambda api: api.hf_hub_download(REPO, "no.json"), EntryNotFoundError, 404),
    ],
)
def test_who_may_read_what(
    online: HubServer, folder: Path, kind: str, who: str | None, read: Read, error: type[Exception] | None, status: int
) -> None:
    online.publish(REPO, folder, private=kind == "private", gated=kind == "gated")
    api = HfApi(token=False if who is None else getattr(online, who, "hf_unknown"))
    if error is None:
        read(api)
        return
    with pytest.raises(error) as raised:
        read(api)
    assert type(raised.value) in (error, *error.__subclasses__())
    assert isinstance(raised.value, HfHubHTTPError)
    assert raised.value.response.status_code == status


def file_of(api: HfApi) -> str:
    return f"{api.endpoint}/{REPO}/resolve/main/config.json"
