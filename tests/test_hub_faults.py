"""Each fault of the tests' Hub goes off where, when and as often as it is asked to, and the client sees it so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

import pytest
from building import dense_llama
from hub import HubServer, Request
from hub.asking import Answer, ask
from huggingface_hub import HfApi, __version__, constants, get_session, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError

OLD = int(__version__.split(".")[0]) == 1 and int(__version__.split(".")[1]) < 33  # 1.0.1 does not, 1.33.0 does
REPO = "someone/llama"
SHARD = "model-00001-of-00002.safetensors"
BLOB = f"GET /blobs/.*{SHARD}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The first shard holds no zeros, so that no byte can be mistaken for another."""
    folder = dense_llama(tmp_path / "llama")
    size = (folder / SHARD).stat().st_size
    (folder / SHARD).write_bytes(bytes(value % 251 + 1 for value in range(size)))
    return folder


@pytest.fixture
def data(hub: HubServer, folder: Path) -> bytes:
    """The first shard, once it is published."""
    hub.publish(REPO, folder)
    return (folder / SHARD).read_bytes()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's waits between its tries, a second and more each, take no time."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def blob(hub: HubServer, asked: str | None = None, **more: float) -> Answer:
    """The first shard or a range of it, from the CDN."""
    head = ask(f"{hub.url}/{REPO}/resolve/main/{SHARD}", method="HEAD")
    return ask(head.headers["location"], {"Range": asked} if asked else None, **more)  # type: ignore[arg-type]


def small(hub: HubServer, headers: Mapping[str, str] | None = None, name: str = "config.json") -> Answer:
    return ask(f"{hub.url}/{REPO}/resolve/main/{name}", headers)


def cdn(hub: HubServer) -> list[Request]:
    return [request for request in hub.counts if request.site == "cdn"]


@pytest.mark.parametrize("status", [401, 403, 404, 416, 429, 500, 502, 503, 504])
def test_a_status_comes_with_its_headers_and_once(hub: HubServer, data: bytes, status: int) -> None:
    fault = hub.fault("GET /someone/llama/resolve/main/config", status=status, headers={"X-Error-Code": "GatedRepo"})
    assert small(hub, name="tokenizer.json").status == 200
    assert fault.fired == 0
    answer = small(hub)
    assert (answer.status, answer.headers["x-error-code"]) == (status, "GatedRepo")
    assert (small(hub).status, fault.fired) == (200, 1)


def test_any_answer_can_be_given(online: HubServer, data: bytes) -> None:
    online.fault("POST .*/paths-info/", status=200, body='[{"type": "file", "path": "a", "oid": "0", "size": 3}]')
    assert [item.path for item in HfApi().get_paths_info(REPO, ["config.json"])] == ["a"]


def test_how_often_and_where(hub: HubServer, data: bytes) -> None:
    hub.fault("GET .*config.json", status=500, times=2, skip=1)
    assert [small(hub).status for _ in range(4)] == [200, 500, 500, 200]
    hub.fault(SHARD, status=500, site="cdn", times=None)
    assert [blob(hub).status for _ in range(3)] == [500, 500, 500]
    hub.heal()
    assert blob(hub).status == 200


@pytest.mark.skipif(OLD, reason="this huggingface_hub does not try again")
@pytest.mark.usefixtures("impatient")
def test_the_client_tries_again_after_503_and_429(online: HubServer, data: bytes) -> None:
    busy = online.fault("GET .*/tree/.*cursor", status=503)
    limited = online.fault(BLOB, status=429, headers={"RateLimit": '"api";r=0;t=0', "Retry-After": "0"})
    online.behave(page=4)
    assert len(list(HfApi().list_repo_tree(REPO))) == 7
    assert Path(hf_hub_download(REPO, SHARD)).read_bytes() == data
    assert (busy.fired, limited.fired) == (1, 1)
    assert [request.status for request in cdn(online)] == [429, 200]


@pytest.mark.skipif(OLD, reason="this huggingface_hub does not try again")
@pytest.mark.usefixtures("impatient")
def test_the_client_resumes_after_a_cut(online: HubServer, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # it keeps whole chunks only, of 10 MB as a rule
    fault = online.fault(BLOB, cut=200_000)
    assert Path(hf_hub_download(REPO, SHARD)).read_bytes() == data
    assert fault.fired == 1
    first, second = cdn(online)
    assert (first.status, first.bytes_sent) == (200, 200_000)
    start = int((second.range or "")[len("bytes=") : -1])
    assert (start, second.status, second.bytes_sent) == (200_000, 206, len(data) - start)


@pytest.mark.parametrize("count", [0, 1, 70_000])
def test_a_cut_ends_the_body_there(hub: HubServer, data: bytes, count: int) -> None:
    hub.fault(BLOB, cut=count)
    answer = blob(hub, "bytes=10-")
    assert (answer.status, answer.headers["content-length"], answer.whole) == (206, str(len(data) - 10), False)
    assert answer.body == data[10 : 10 + count]
    assert cdn(hub)[0].bytes_sent == count


def test_a_stall_is_as_long_as_asked(hub: HubServer, data: bytes) -> None:
    hub.fault("GET .*config.json", stall=0.2)
    begin = monotonic()
    assert small(hub).status == 200
    assert 0.2 <= monotonic() - begin < 2
    hub.fault(BLOB, stall=5, at=1000)
    begin = monotonic()
    with pytest.raises(TimeoutError):
        blob(hub, timeout=0.1)
    assert monotonic() - begin < 2
    assert cdn(hub)[-1].bytes_sent == 1000


@pytest.mark.parametrize("asked", [None, "bytes=50-99"])
def test_one_byte_is_flipped(hub: HubServer, data: bytes, asked: str | None) -> None:
    hub.fault(BLOB, flip=7)
    right = data if asked is None else data[50:100]
    answer = blob(hub, asked)
    assert answer.whole
    assert [place for place in range(len(right)) if answer.body[place] != right[place]] == [7]
    assert blob(hub, asked).body == right


def test_a_short_body_agrees_with_its_length(online: HubServer, data: bytes) -> None:
    online.fault(BLOB, short=10)
    answer = blob(online)
    assert (answer.whole, answer.body) == (True, data[:-10])
    online.fault(BLOB, short=10, times=None)
    with pytest.raises(OSError, match="Consistency check failed"):
        hf_hub_download(REPO, SHARD)


def test_a_range_is_ignored_or_misnamed(hub: HubServer, data: bytes) -> None:
    hub.fault(BLOB, ignore_range=True)
    assert blob(hub).status == 200  # no range, nothing to ignore
    answer = blob(hub, "bytes=5-9")
    assert (answer.status, answer.body, "content-range" in answer.headers) == (200, data, False)
    hub.fault(BLOB, content_range="bytes 0-4/9")
    answer = blob(hub, "bytes=5-9")
    assert (answer.status, answer.body, answer.headers["content-range"]) == (206, data[5:10], "bytes 0-4/9")


def test_a_document_comes_compressed(online: HubServer, data: bytes, folder: Path) -> None:
    fault = online.fault("GET .*config.json", gzip=True, times=None)
    answer = small(online, {"Accept-Encoding": "gzip"})
    assert (answer.headers["content-encoding"], answer.body[:2]) == ("gzip", b"\x1f\x8b")
    assert small(online).body == (folder / "config.json").read_bytes()
    assert Path(hf_hub_download(REPO, "config.json")).read_bytes() == (folder / "config.json").read_bytes()
    assert fault.fired == 3


def test_a_fault_of_the_body_waits_for_a_body(online: HubServer, data: bytes) -> None:
    fault = online.fault(SHARD, flip=0)
    ask(f"{online.url}/{REPO}/resolve/main/{SHARD}", method="HEAD")
    assert ask(f"{online.url}/{REPO}/resolve/main/{SHARD}").status == 302
    assert fault.fired == 0
    assert Path(hf_hub_download(REPO, SHARD)).read_bytes() == bytes([data[0] ^ 0xFF]) + data[1:]


def test_redirects_go_where_they_are_told(online: HubServer, data: bytes) -> None:
    session = get_session()
    token = {"Authorization": f"Bearer {online.token}"}
    url = f"{online.url}/{REPO}/resolve/main/config.json"
    loop = online.fault("GET .*config.json", redirect="{self}", times=None)
    with pytest.raises(Exception, match=r"[Rr]edirect"):
        session.get(url, headers=token)
    assert loop.fired > 10
    online.heal()
    online.fault("GET .*config.json", redirect=f"{online.cdn}/collect", status=307)
    assert session.get(url, headers=token).status_code == 403
    assert (cdn(online)[-1].path, online.leaks) == ("/collect", [])
    online.fault("GET .*config.json", redirect="file:///etc/hostname")
    assert ask(url).headers["location"] == "file:///etc/hostname"


@pytest.mark.skipif(OLD, reason="this huggingface_hub does not try again")
@pytest.mark.usefixtures("impatient")
def test_an_upload_is_cut_and_comes_again(online: HubServer) -> None:
    data = os.urandom(3 << 20)
    HfApi().create_repo(REPO)
    fault = online.fault("PUT /uploads/", cut=1 << 20)
    HfApi().upload_file(repo_id=REPO, path_or_fileobj=data, path_in_repo="a.bin")
    assert fault.fired == 1
    assert online.read(REPO, "a.bin") == data
    first, second = [request.bytes_received for request in online.counts if request.method == "PUT"]
    assert 1 << 20 <= first < second == len(data)


def test_a_byte_lost_on_the_way_in_is_refused(online: HubServer) -> None:
    HfApi().create_repo(REPO)
    online.fault("PUT /uploads/", flip=3)
    with pytest.raises((HfHubHTTPError, RuntimeError)) as raised:
        HfApi().upload_file(repo_id=REPO, path_or_fileobj=b"0123456789", path_in_repo="a.bin")
    assert "SHA256Mismatch" in f"{raised.value} {raised.value.__cause__}"
    assert list(online.files(REPO)) == [".gitattributes"]


def test_what_is_stored_can_rot(online: HubServer) -> None:
    api = HfApi()
    api.create_repo(REPO)
    online.fault("PUT /uploads/", rot=3)
    online.fault("POST .*/commit/", rot=0)
    api.upload_file(repo_id=REPO, path_or_fileobj=b"0123456789", path_in_repo="a.bin")
    assert online.read(REPO, "a.bin") == b"012" + bytes([ord("3") ^ 0xFF]) + b"456789"
    sha256 = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"  # of 0123456789, by sha256sum
    assert online.files(REPO)["a.bin"] == (10, sha256)
    online.fault("POST .*/commit/", rot=0)
    api.upload_file(repo_id=REPO, path_or_fileobj=b"text", path_in_repo="a.txt")
    assert online.read(REPO, "a.txt") == bytes([ord("t") ^ 0xFF]) + b"ext"


def test_a_commit_whose_answer_is_lost_was_made(online: HubServer) -> None:
    api = HfApi()
    api.create_repo(REPO)
    online.fault("POST .*/commit/", cut=0)
    with pytest.raises(Exception, match=r"(?i)without|incomplete|closed|peer"):
        api.upload_file(repo_id=REPO, path_or_fileobj=b"text", path_in_repo="a.txt")
    assert online.read(REPO, "a.txt") == b"text"
