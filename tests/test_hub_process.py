"""The Hub of the tests is a process that counts what it serves, holds no file in memory and never outlives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
from building import dense_llama
from hub import HubServer
from hub.asking import ask

REPO = "someone/llama"
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return dense_llama(tmp_path / "llama")


def place(hub: HubServer, name: str) -> str:
    """Where a large file is on the CDN."""
    return ask(f"{hub.url}/{REPO}/resolve/main/{name}", method="HEAD").headers["location"]


def test_seventy_gigabytes_are_served_from_where_they_stand(tmp_path: Path) -> None:
    folder = tmp_path / "huge"
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(70 << 30)
        file.seek(-4, os.SEEK_END)
        file.write(b"last")
    with HubServer() as hub:  # its own, for its memory is measured
        hub.publish(REPO, folder, hash_shards=False)
        assert hub.files(REPO)["model.safetensors"][0] == 70 << 30
        assert ask(place(hub, "model.safetensors"), {"Range": "bytes=-4"}).body == b"last"
        many = ask(place(hub, "model.safetensors"), {"Range": f"bytes=0-{(64 << 20) - 1}"})
        assert len(many.body) == 64 << 20
        assert int(Path(f"/proc/{hub.pid}/status").read_text().partition("VmHWM:")[2].split()[0]) < 60_000  # kB


def test_every_request_is_counted_until_reset(hub: HubServer, folder: Path) -> None:
    hub.publish(REPO, folder)
    ask(place(hub, SHARD), {"Range": "bytes=0-9"})
    ask(f"{hub.url}/api/whoami-v2", {"Authorization": "Bearer hf_wrong"})
    seen = [(r.site, r.method, r.status, r.bytes_sent, r.range, r.authorized) for r in hub.counts]
    assert seen[:2] == [("api", "HEAD", 302, 0, None, False), ("cdn", "GET", 206, 10, "bytes=0-9", False)]
    assert seen[2][:3] == ("api", "GET", 401)
    assert seen[2][5]
    assert hub.log[2].headers["authorization"] == "Bearer hf_wrong"
    hub.reset()
    assert hub.counts == []


def test_a_child_process_finds_it_by_its_environment(hub: HubServer, folder: Path) -> None:
    hub.publish(REPO, folder, private=True)
    code = f"from huggingface_hub import HfApi; print(HfApi().hf_hub_download({REPO!r}, 'config.json'))"
    command = [sys.executable, "-c", code]
    child = subprocess.run(command, env={**os.environ, **hub.env()}, check=True, capture_output=True, text=True)
    assert Path(child.stdout.strip()).is_relative_to(hub.home)
    elsewhere = hub.env(token=None, HF_HUB_CACHE=str(folder / "cache"))
    refused = subprocess.run(command, env={**os.environ, **elsewhere}, check=False, capture_output=True, text=True)
    assert "RepositoryNotFoundError" in refused.stderr


def test_it_listens_on_loopback_only(hub: HubServer) -> None:
    ports = {f"{int(url.rpartition(':')[2]):04X}" for url in (hub.url, hub.cdn)}
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if line.split()[3] == "0A"]
    assert {place for place in listening if place[-4:] in ports} == {f"0100007F:{port}" for port in ports}


def test_it_ends_with_the_tests_even_when_they_are_killed(tmp_path: Path) -> None:
    code = "import time, hub; h = hub.HubServer().__enter__(); print(h.pid, h.home, flush=True); time.sleep(60)"
    tests = str(Path(__file__).parent)
    child = subprocess.Popen([sys.executable, "-c", code], cwd=tests, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pid, home = child.stdout.readline().split()
    assert Path(home).is_dir()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    end = monotonic() + 5
    while runs(pid) and monotonic() < end:
        sleep(0.01)
    assert not runs(pid)
    assert not Path(home).exists()


def runs(pid: str) -> bool:
    """Whether the process is there and not merely waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
