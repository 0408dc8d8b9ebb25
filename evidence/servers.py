"""`python -m evidence.servers FULL OUT --seconds 560`: serve the full-size builds side by side and measure them.

Every candidate gets a vLLM server of its own on one GPU; all are up before the first request, and `ckpt latency` asks
them in turn, so that no other work disturbs. A candidate whose server does not start is left out and its log kept.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PORT = 8100
READY_SHARE = 0.66
"""Share of the time in which servers may start."""

COMMON = (
    *("--max-model-len", "4096"),
    *("--max-num-seqs", "8"),
    *("--kv-cache-memory-bytes", str(2 << 30)),
    *("--gpu-memory-utilization", "0.15"),  # asked of the card at the start alone, since the cache has its size
    *("--limit-mm-per-prompt", '{"image": 0, "video": 0}'),
    *("--cudagraph-capture-sizes", "1", "2", "4", "8", "16"),
    *("--gdn-prefill-backend", "triton"),
    *("--generation-config", "vllm"),
    *("--host", "127.0.0.1"),
)
DRAFTS = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}')
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_CACHE_ROOT": "/tmp/vllm_cache",
    "VLLM_CONFIG_ROOT": "/tmp/vllm_cache",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}

# Figures in vLLM's log, by name; the last line counts.
FIGURES = {
    "weights_gib": r"Model loading took ([\d.]+) GiB",
    "load_seconds": r"Loading weights took ([\d.]+) seconds",
    "graphs_gib": r"Graph capturing finished in \d+ secs, took (-?[\d.]+) GiB",
    "kv_cache_tokens": r"GPU KV cache size: ([\d,]+) tokens",
    "compile_seconds": r"torch\.compile took ([\d.]+) s",
}


@dataclass(frozen=True)
class Candidate:
    """A build, served with or without drafts."""

    name: str
    build: str
    arguments: tuple[str, ...] = ()


CANDIDATES = (
    Candidate("experts", "experts"),
    Candidate("body", "body"),
    Candidate("body-head", "body-head"),
    Candidate("experts+mtp", "experts", DRAFTS),
    Candidate("body-head+mtp", "body-head", DRAFTS),
)

MEASUREMENTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("latency", ("--streams", "1,5", "--prompt-tokens", "128", "--output-tokens", "128", "--rounds", "12")),
    ("latency-2048", ("--streams", "1", "--prompt-tokens", "2048", "--output-tokens", "64", "--rounds", "6")),
)


class Server:
    """vLLM's server for one candidate, in a process group of its own."""

    def __init__(self, candidate: Candidate, port: int, full: Path, out: Path) -> None:
        self.candidate = candidate
        self.url = f"http://127.0.0.1:{port}"
        self.log = out / f"server-{re.sub('[^a-z-]', '-', candidate.name)}.log"
        self.began = time.time()
        self.ready_seconds: float | None = None
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command(candidate, port, full),
                stdout=log,
                stderr=log,
                cwd="/tmp",
                env=environment(),
                start_new_session=True,
            )

    def has_answered(self) -> bool:
        """Whether it says that it is ready."""
        if self.ready_seconds is None and self.process.poll() is None and answers(f"{self.url}/health"):
            self.ready_seconds = round(time.time() - self.began, 1)
        return self.ready_seconds is not None

    def completes(self) -> bool:
        """Whether it answers a prompt; one that does not would end the measurement of all."""
        asked = {"model": self.candidate.name, "prompt": "One, two, three", "max_tokens": 8, "temperature": 0}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                said = reply.read().decode(errors="replace")
        except (urllib.error.URLError, OSError) as error:
            print(f"{self.candidate.name}: no answer: {error}", flush=True)
            return False
        print(f"{self.candidate.name}: {said[:300]}", flush=True)
        return True

    def is_hopeless(self) -> bool:
        return self.process.poll() is not None

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def account(self) -> dict[str, Any]:
        """What its log says of memory and time, and its metrics."""
        text = self.log.read_text(errors="replace")
        figures = {name: _last(pattern, text) for name, pattern in FIGURES.items()}
        return {
            "name": self.candidate.name,
            "build": self.candidate.build,
            "arguments": [*self.candidate.arguments],
            "ready_seconds": self.ready_seconds,
            **figures,
        }


def main(arguments: Sequence[str]) -> None:
    """Start, wait, measure, stop; what is known is written whatever happens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("full", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--only", action="append", help="names of candidates, instead of all")
    parser.add_argument("--extra", default="", help="further arguments of every server, as --enforce-eager")
    options = parser.parse_args(arguments)
    deadline = time.time() + options.seconds
    chosen = [one for one in CANDIDATES if not options.only or one.name in options.only]
    chosen = [replace(one, arguments=(*one.arguments, *options.extra.split())) for one in chosen]
    servers = [Server(one, PORT + place, options.full, options.out) for place, one in enumerate(chosen)]
    try:
        ready = wait_for(servers, time.time() + options.seconds * READY_SHARE)
        (options.out / "memory.txt").write_text(memory())
        ready = [server for server in ready if server.completes()]
        for name, words in MEASUREMENTS:
            measure(ready, name, words, options.out, deadline)
    finally:
        accounts = [server.account() for server in servers]
        for server in servers:
            server.stop()
        document = {"common": [*COMMON], "environment": ENVIRONMENT, "servers": accounts}
        (options.out / "servers.json").write_text(json.dumps(document, indent=1))
        print(json.dumps(accounts, indent=1))


def command(candidate: Candidate, port: int, full: Path) -> list[str]:
    """The server's command line."""
    model = str(full / candidate.build)
    words = ["-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", candidate.name]
    return [sys.executable, *words, *COMMON, *candidate.arguments, "--port", str(port)]


def wait_for(servers: Iterable[Server], until: float) -> list[Server]:
    """The servers that are ready once all are, or have ended, or the time is up; the others are stopped."""
    open_servers = list(servers)
    ready: list[Server] = []
    while open_servers and time.time() < until:
        time.sleep(1)
        for server in list(open_servers):
            if server.has_answered() or server.is_hopeless():
                open_servers.remove(server)
                ready += [] if server.is_hopeless() else [server]
                print(f"{server.candidate.name}: {server.ready_seconds or 'ended'}", flush=True)
    for server in open_servers:
        server.stop()
    return ready


def measure(servers: Sequence[Server], name: str, words: Sequence[str], out: Path, deadline: float) -> None:
    """One run of `ckpt latency` over all servers, as long as there is time; its document and its table."""
    left = deadline - time.time()
    if not servers or left < 30:
        print(f"{name}: not run")
        return
    named = [word for server in servers for word in ("--candidate", f"{server.candidate.name}={server.url}")]
    arguments = [sys.executable, "-m", "ckpt", "latency", *named, *words, "--json"]
    with (out / f"{name}.json").open("wb") as document, (out / f"{name}.err").open("wb") as errors:
        try:
            code = subprocess.run(arguments, stdout=document, stderr=errors, timeout=left, check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
    print(f"{name}: exit code {code}; {(out / f'{name}.err').read_text(errors='replace')[-400:]}", flush=True)


def memory() -> str:
    """The card's memory by process, as the driver counts it."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv"]
    try:
        whole = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False).stdout
        return whole + subprocess.run(query, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return "no nvidia-smi"


def answers(url: str) -> bool:
    """Whether the URL gives 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def environment() -> dict[str, str]:
    """That of this process, without this tree among the places of packages."""
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if Path(place) != ROOT]
    return os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(places)}


def _last(pattern: str, text: str) -> float | None:
    found = re.findall(pattern, text)
    return float(found[-1].replace(",", "")) if found else None


if __name__ == "__main__":
    main(sys.argv[1:])
