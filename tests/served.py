"""A real server on loopback: transformers' own, with any checkpoint on this disk as its model.

It computes in F32: what BF16 weights hold is exact in it, and a CPU multiplies BF16 ten times slower.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

START_SECONDS = 300

VLLM_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="session")
def transformers_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `transformers serve`; a request's model is a checkpoint's folder, loaded when first asked for.

    One process for all of a test run's workers: the first that asks starts it, the last that is done ends it.
    """
    pytest.importorskip("fastapi")
    from filelock import FileLock

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    note, lock = shared / "server.json", FileLock(shared / "server.lock")
    with lock:
        found = json.loads(note.read_text()) if note.exists() else _started(shared)
        note.write_text(json.dumps(found | {"users": found["users"] + 1}))
    yield f"http://127.0.0.1:{found['port']}"
    with lock:
        left = json.loads(note.read_text())
        note.write_text(json.dumps(left | {"users": left["users"] - 1}))
        if left["users"] == 1:
            note.unlink()
            os.killpg(left["pid"], signal.SIGKILL)


@pytest.fixture(scope="session")
def vllm_server(smollm2_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a vLLM for CPUs that serves `smollm2_base`, where CKPT_VLLM_CPU names its executable."""
    executable = os.environ.get("CKPT_VLLM_CPU")
    if not executable:
        pytest.skip("CKPT_VLLM_CPU names no vLLM")
    folder, port = tmp_path_factory.mktemp("vllm"), free_port()
    command = [executable, "serve", str(smollm2_base), "--served-model-name", "smollm2", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4"]
    process = _running([*command, "--dtype", "float32"], folder, port, VLLM_ENVIRONMENT)
    yield f"http://127.0.0.1:{port}"
    os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _started(folder: Path) -> dict[str, int]:
    """transformers' server."""
    port = free_port()
    (folder / "hub").mkdir(exist_ok=True)
    environment = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(folder / "hub"), "OMP_NUM_THREADS": "1"}
    command = [str(Path(sys.executable).with_name("transformers")), "serve", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--device", "cpu", "--dtype", "float32", "--log-level", "error"]
    return {"pid": _running(command, folder, port, environment).pid, "port": port, "users": 0}


def _running(command: list[str], folder: Path, port: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A server that answers, in a process group of its own."""
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return process
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.1)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    pytest.fail(f"{command[0]} did not start: " + (folder / "server.log").read_text()[-2000:])
