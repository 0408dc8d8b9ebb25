"""Where a server is, and the key that it asks for."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from checkpoint.errors import Problem
from serving.faults import ServerFault

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
API = "/v1"
_HOST = re.compile(r"[a-zA-Z0-9._-]+|[0-9a-fA-F:.]+")


@dataclass(frozen=True)
class ServerAddress:
    """`root` is what `/metrics` follows, `api` what `/chat/completions` follows. The key is never in a `repr`."""

    root: str
    api: str
    local: bool
    key: str | None = field(default=None, repr=False)

    @staticmethod
    def parse(url: str, api_key_env: str | None = None) -> ServerAddress:
        """`http://host:8000`, with or without `/v1` or another path. Raises ServerFault."""
        bad = _what_is_wrong(url)
        if bad:
            shown = url if "@" not in url else "the address"
            raise ServerFault(Problem("server-address", f"{shown}: {bad}", expected="http://host:port or https://host"))
        parts = urlsplit(url)
        root = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix(API)}"
        local = parts.hostname in LOOPBACK
        return ServerAddress(root, root + API, local, _key(api_key_env) if api_key_env else None)


def _what_is_wrong(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # its words can have a password
        return "no address of a server"
    if parts.scheme not in ("http", "https") or not host:
        return "no address of a server"
    if not _HOST.fullmatch(host):  # urllib and httpx do not read all others alike
        return "no name of a host"
    if "@" in url:  # in a path, too: a password may have a slash
        return "names a user or a password; a key comes from an environment variable"
    if set(url) & set("?#\\") or not url.isascii() or not url.isprintable() or " " in url:
        return "has more than scheme, host, port and path"
    return ""


def _key(name: str) -> str:
    """The key in the environment variable `name`. Its text is in no message."""
    key = os.environ.get(name, "").strip()
    if not key:
        raise ServerFault(Problem("key-missing", f"the environment variable {name} is not set, or empty"))
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ServerFault(Problem("key-invalid", f"what the environment variable {name} holds cannot be sent as a key"))
    return key
