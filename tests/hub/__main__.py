"""The server process: two loopback addresses, and commands as JSON lines on stdin until that closes."""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import threading
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .access import Hub
from .faults import Fault, Faults
from .ledger import Ledger
from .repos import Repo, entries_of
from .server import Site
from .wire import Refused


class Control:
    """The commands of `HubServer`, by name."""

    def __init__(self, hub: Hub, faults: Faults, ledger: Ledger, homes: Path) -> None:
        self._hub, self._faults, self._ledger, self._homes = hub, faults, ledger, homes
        self.commands: dict[str, Callable[..., Any]] = {
            "publish": self.publish,
            "tag": self.tag,
            "files": self.files,
            "read": self.read,
            "commits": self.commits,
            "told": ledger.told,
            "reset": ledger.reset,
            "fault": lambda **given: faults.add(Fault(**given)),
            "fired": faults.fired,
            "heal": faults.heal,
            "behave": self.behave,
            "renew": self.renew,
        }

    def publish(
        self,
        repo_id: str,
        folder: str,
        branch: str,
        message: str,
        oids: dict[str, str],
        hash_shards: bool,
        private: bool,
        gated: bool,
    ) -> str:
        entries = entries_of(Path(folder), oids, hash_shards)
        with self._hub.lock:
            repo = self._hub.repos.setdefault(repo_id, Repo(repo_id, private, gated))
        with repo.lock:
            return repo.commit(branch, entries, message or "Publish").oid

    def tag(self, repo_id: str, name: str, revision: str) -> None:
        repo = self._hub.repos[repo_id]
        repo.tags[name] = repo.at(revision)

    def files(self, repo_id: str, revision: str) -> dict[str, tuple[int, str | None]]:
        found = self._hub.repos[repo_id].at(revision).files
        return {name: (entry.size, entry.lfs) for name, entry in sorted(found.items())}

    def read(self, repo_id: str, name: str, revision: str) -> str:
        return b64encode(b"".join(self._hub.repos[repo_id].at(revision).files[name].blob.chunks())).decode()

    def commits(self, repo_id: str, revision: str) -> list[tuple[str, str, str]]:
        return [(c.oid, c.title, c.message) for c in self._hub.repos[repo_id].at(revision).ancestry()]

    def renew(self) -> str:
        """Back to the state at the start, with a home of its own; tells that home."""
        self._hub.repos.clear()
        self._hub.parts.clear()
        self._faults.heal()
        self._ledger.reset()
        self.behave(page=Hub.page, part=Hub.part, relay=Hub.relay)
        return _home(self._homes)

    def behave(self, **limits: Any) -> None:
        for name, value in limits.items():
            setattr(self._hub, name, value)


def main() -> None:
    """Serves until stdin closes or the parent is gone, then leaves nothing behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the tests; they close stdin
    homes = Path(tempfile.mkdtemp(prefix="ckpt-hub-"))
    try:
        _more_descriptors()
        hub, faults, ledger = Hub(), Faults(), Ledger()
        sites = [Site(name, hub, faults, ledger) for name in ("api", "cdn")]
        # Different host names, since the client tells the Hub from a CDN by the name alone.
        hub.url, hub.cdn = f"http://127.0.0.1:{sites[0].port}", f"http://localhost:{sites[1].port}"
        for site in sites:
            threading.Thread(target=site.serve_forever, daemon=True).start()
        _say({"url": hub.url, "cdn": hub.cdn, "tokens": [*hub.tokens], "home": _home(homes)})
        _obey(Control(hub, faults, ledger, homes).commands)
    finally:
        shutil.rmtree(homes, ignore_errors=True)
    os._exit(0)  # threads that stall on demand are not waited for


def _obey(commands: dict[str, Callable[..., Any]]) -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        # A process forked by the tests may hold our stdin open when they are killed, hence the look at the parent.
        if not select.select([sys.stdin], [], [], 1.0)[0]:
            continue
        line = sys.stdin.readline()
        if not line.strip():
            return
        _say(_done(commands, json.loads(line)))


def _done(commands: dict[str, Callable[..., Any]], order: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": commands[order["do"]](**order["with"])}
    except Refused as refused:
        return {"error": refused.reply.headers.get("X-Error-Message", "refused")}
    except (OSError, LookupError, TypeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _home(homes: Path) -> str:
    """A new HF_HOME."""
    home = tempfile.mkdtemp(dir=homes)
    # Else the client fetches a list of coding agents once, which no test that counts requests expects.
    Path(home, ".agent_harnesses.json").write_text('{"harnesses": {}, "standardEnvVars": []}')
    return home


def _more_descriptors() -> None:
    """Every published file holds one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))


if __name__ == "__main__":
    main()
