"""`ckpt upload` against the Hub of the tests: as a child process, and in this one where only the outcome matters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import click
from building import packed_llama
from hub import HubServer, Request

from checkpoint import Draft, apply_plan, open_checkpoint, plan_for
from ckpt.__main__ import cli

ROOT = Path(__file__).parent.parent
REPO = "someone/model"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX, CONFIG = "model.safetensors.index.json", "config.json"
MANIFEST, REPORT = "ckpt.manifest.json", "ckpt.report.json"
SIDE = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")
SENT = {*SHARDS, INDEX, CONFIG, *SIDE, MANIFEST, REPORT}

Run = subprocess.CompletedProcess[str]


def written(folder: Path, source: Path | None = None) -> Path:
    """`source` as this project writes it, with a manifest; by default a sound packed Llama."""
    origin = open_checkpoint(source or packed_llama(folder.with_name(f"{folder.name}-source")))
    return apply_plan(plan_for(Draft.of(origin), folder), folder).root


def command(folder: Path, *arguments: str | Path, repo: str = REPO) -> list[str]:
    return [sys.executable, "-m", "ckpt", "upload", str(folder), repo, *map(str, arguments)]


def upload(hub: HubServer, folder: Path, *arguments: str | Path, token: str | None = "", **env: str) -> Run:
    """A child process. Whatever it says, it says no token."""
    done = subprocess.run(
        command(folder, *arguments),
        env={**os.environ, **hub.env(token=token), **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert_tells_no_token(hub, done.stdout + done.stderr)
    return done


def assert_tells_no_token(hub: HubServer, said: str) -> None:
    assert not any(token in said for token in (hub.token, hub.read_token, hub.stranger_token))


@contextmanager
def meanwhile(hub: HubServer, match: str, do: Callable[[], object]) -> Iterator[None]:
    """The first request that `match` names is held while `do` is done."""
    fault = hub.fault(match, stall=0.5)

    def watch() -> None:
        wait_for(lambda: fault.fired == 1)
        do()

    watcher = Thread(target=watch)
    watcher.start()
    yield
    watcher.join()


def wait_for(happened: Callable[[], bool], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def here(folder: Path, *arguments: str | Path, repo: str = REPO) -> int:
    """In this process, against the fixture `online`; the exit code. Raises what the command raises."""
    return run("upload", folder, repo, *arguments)


def run(*arguments: str | Path) -> int:
    """Any command in this process."""
    try:
        return int(cli.main([*map(str, arguments)], "ckpt", standalone_mode=False) or 0)
    except click.exceptions.Exit as stop:
        return stop.exit_code


def writes(hub: HubServer) -> list[Request]:
    """Requests that change something, or bring something."""
    return [one for one in hub.counts if one.method not in ("GET", "HEAD")]


def sent_objects(hub: HubServer) -> int:
    """How many large files were sent."""
    return sum(one.method == "PUT" and one.status == 200 for one in hub.counts)


def commits(hub: HubServer) -> int:
    """How many commits were made."""
    return sum("/commit/" in one.path and one.status == 200 for one in writes(hub))


def is_private(hub: HubServer, repo: str = REPO) -> bool:
    request = urllib.request.Request(f"{hub.url}/api/models/{repo}", headers={"Authorization": f"Bearer {hub.token}"})
    with urllib.request.urlopen(request) as answer:
        return bool(json.load(answer)["private"])


def document(hub: HubServer, name: str) -> Any:
    return json.loads(hub.read(REPO, name))


def waivers(path: Path, *entries: dict[str, str]) -> Path:
    path.write_text(json.dumps({"waivers": list(entries)}))
    return path
