"""The tests' end of the server: starts the process, tells it what to hold and what to spoil, asks what came."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .faults import ALWAYS


@dataclass(frozen=True)
class Request:
    """One request that came. `site` is "api" or "cdn"; `path` has the query; the bytes are those of the body.

    `bytes_sent` is what the server handed to the connection: a client that hangs up has received a little less.
    `authorized` says that a token came, right or wrong.
    """

    method: str
    path: str
    status: int
    bytes_sent: int
    bytes_received: int
    range: str | None
    authorized: bool
    site: str


@dataclass(frozen=True)
class Logged:
    """One request as it came: all headers, names in lower case, tokens in clear."""

    site: str
    method: str
    path: str
    headers: Mapping[str, str]


class Fault:
    """A fault that was asked for."""

    def __init__(self, hub: HubServer, number: int) -> None:
        self._hub, self._number = hub, number

    @property
    def fired(self) -> int:
        """How often it went off."""
        return int(self._hub._ask("fired", number=self._number))


class HubServer:
    """A Hub of its own on loopback, from `with` to its end. See the package's docstring."""

    url: str  # the API, http://127.0.0.1:PORT
    cdn: str  # where large files are, http://localhost:PORT2
    token: str  # may write
    read_token: str  # of the same person, may only read
    stranger_token: str  # of someone to whom private repositories do not exist
    home: Path  # HF_HOME of `env`, removed at the end
    pid: int

    def __enter__(self) -> HubServer:
        tests = Path(__file__).parents[1]
        # -S: site-packages are of no use to it and their .pth files take time to start.
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-m", "hub"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=tests,
            env={**os.environ, "PYTHONPATH": str(tests)},
            text=True,
        )
        self.pid = self._process.pid
        self._lock = threading.Lock()
        told = json.loads(self._heard())
        self.url, self.cdn, self.home = told["url"], told["cdn"], Path(told["home"])
        self.token, self.read_token, self.stranger_token = told["tokens"]
        return self

    def __exit__(self, *exception: object) -> None:
        stdin, stdout = self._pipes()
        with suppress(OSError):  # it is gone already
            stdin.write("\n")  # ends it even where a process forked by the tests holds the pipe open
            stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        stdout.close()

    def env(self, *, token: str | None = "", **more: str) -> dict[str, str]:
        """What a child process needs in `os.environ` to have this as its Hub, with a cache of its own.

        `token` is the writing one unless given, None for none; `more` is added.
        """
        chosen = self.token if token == "" else token or ""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(self.home),
            "HF_HUB_CACHE": str(self.home / "hub"),
            "HF_TOKEN_PATH": str(self.home / "token"),
            "HF_TOKEN": chosen,
            "HUGGING_FACE_HUB_TOKEN": chosen,
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "*",
            "no_proxy": "*",
            **more,
        }

    def publish(
        self,
        repo_id: str,
        folder: str | Path,
        *,
        private: bool = False,
        gated: bool = False,
        message: str = "",
        branch: str = "main",
        oids: Mapping[str, str] | None = None,
        hash_shards: bool = True,
    ) -> str:
        """Makes the folder the new commit of a branch and returns the commit's sha; the repository is made if need be.

        Large files are served from where they stand, opened now: they may be deleted or replaced afterwards, but one
        that is written to in place is answered by 500. `oids` are sha256 that are known, by file name; without
        `hash_shards` the others are made up from name and size, and nothing large is read. `private` and `gated`
        count when the repository is made.
        """
        how = {"private": private, "gated": gated, "message": message, "branch": branch, "hash_shards": hash_shards}
        place = str(Path(folder).resolve())
        return str(self._ask("publish", repo_id=repo_id, folder=place, oids=dict(oids or {}), **how))

    def tag(self, repo_id: str, name: str, revision: str = "main") -> None:
        """Gives a commit a further name."""
        self._ask("tag", repo_id=repo_id, name=name, revision=revision)

    def files(self, repo_id: str, revision: str = "main") -> dict[str, tuple[int, str | None]]:
        """Size, and for a file in LFS its sha256, of every file."""
        found = self._ask("files", repo_id=repo_id, revision=revision)
        return {name: (size, sha256) for name, (size, sha256) in found.items()}

    def read(self, repo_id: str, name: str, revision: str = "main") -> bytes:
        """A file's bytes as the server holds them."""
        return b64decode(self._ask("read", repo_id=repo_id, name=name, revision=revision))

    def commits(self, repo_id: str, revision: str = "main") -> list[tuple[str, str, str]]:
        """Sha, title and description of a revision and all before it, newest first."""
        return [tuple(commit) for commit in self._ask("commits", repo_id=repo_id, revision=revision)]

    @property
    def counts(self) -> list[Request]:
        """All requests since the start or the last `reset`, in the order they came."""
        return [_request(line) for line in self._ask("told")]

    @property
    def log(self) -> list[Logged]:
        """The same requests with all their headers."""
        return [Logged(line["site"], line["method"], line["path"], line["headers"]) for line in self._ask("told")]

    @property
    def leaks(self) -> list[Logged]:
        """Requests to the CDN in which a token stands anywhere."""
        tokens = (self.token, self.read_token, self.stranger_token)
        asked = [logged for logged in self.log if logged.site == "cdn"]
        return [one for one in asked if any(token in repr(one) for token in tokens)]

    def renew(self) -> None:
        """Forgets everything, as if it were started now: repositories, requests, faults, and the cache of `env`."""
        self.home = Path(self._ask("renew"))

    def reset(self) -> None:
        """Forgets the requests so far; repositories and faults stay."""
        self._ask("reset")

    def heal(self) -> None:
        """Takes back all faults."""
        self._ask("heal")

    def behave(self, *, page: int | None = None, part: int | None = None, relay: bool | None = None) -> None:
        """What is set stays until the next test.

        page: Entries in a page of a listing, 1000 unless set.
        part: Bytes above which LFS uploads go in parts of this size, 64 MiB unless set.
        relay: Small files are answered as huggingface.co does since 2025, by 307 and a relative `Location` under
            `/api/resolve-cache/`; unless set they are answered at once.
        """
        given = {"page": page, "part": part, "relay": relay}
        self._ask("behave", **{name: value for name, value in given.items() if value is not None})

    def fault(
        self,
        match: str,
        *,
        times: int | None = 1,
        skip: int = 0,
        site: str | None = None,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        redirect: str | None = None,
        stall: float | None = None,
        at: int | None = None,
        cut: int | None = None,
        flip: int | None = None,
        rot: int | None = None,
        short: int | None = None,
        gzip: bool = False,
        ignore_range: bool = False,
        content_range: str | None = None,
    ) -> Fault:
        """Spoils requests in whose "METHOD /path?query" the regular expression `match` finds something.

        Who: the first `times` of them, None for all, after `skip` good ones; `site` "api" or "cdn" for one of the two.
        The earliest fault that suits a request is the one that goes off.

        Instead of an answer:
            status: this status, with these `headers` and this `body` (a JSON error where there is none).
            redirect: `Location` is this URL; "{self}" in it is the request's own. Status 302 unless `status` is given.
            stall: seconds to wait before the request is looked at; with `at` before that byte of the answer's body.

        The body of a good answer (200 or 206, no HEAD, no redirect):
            cut: the connection closes after so many bytes of it, all that was announced missing after that.
            flip: this byte of it is inverted; counted from the body's begin, around its end.
            short: so many bytes at its end are missing, and `Content-Length` agrees; `Content-Range` does not.
            gzip: it is compressed, where the client accepts that, as the Hub does with JSON and text.
            ignore_range: 200 with the whole file, though a range was asked for.
            content_range: this is the header's value, whatever is sent.

        The body of an upload:
            cut: the connection closes after so many bytes of a PUT were taken in.
            flip: this byte of a PUT is inverted on its way in, so its hash is wrong.
            rot: this byte is stored inverted though all was right: in a PUT of a whole object under its right sha256;
                in a commit (POST) in every regular file that is as long.
        """
        given = {name: value for name, value in locals().items() if name != "self" and value is not None}
        return Fault(self, self._ask("fault", **{"times": ALWAYS, **given}))

    def _ask(self, do: str, **given: Any) -> Any:
        with self._lock:
            stdin, _ = self._pipes()
            stdin.write(json.dumps({"do": do, "with": given}) + "\n")
            stdin.flush()
            answer = json.loads(self._heard())
        if "error" in answer:
            raise ValueError(f"hub.{do}: {answer['error']}")
        return answer["result"]

    def _heard(self) -> str:
        line: str = self._pipes()[1].readline()
        if not line:
            raise RuntimeError(f"the Hub server ended with {self._process.wait()}")
        return line

    def _pipes(self) -> tuple[Any, Any]:
        return self._process.stdin, self._process.stdout


def _request(line: Mapping[str, Any]) -> Request:
    headers = line["headers"]
    kept = {name: line[name] for name in ("method", "path", "status", "bytes_sent", "bytes_received", "site")}
    return Request(**kept, range=headers.get("range"), authorized="authorization" in headers)
