"""Which request is answered by what."""

from __future__ import annotations

import re

from . import changing, reading, resolve, uploading
from .access import Hub
from .wire import Call, Refused, Reply, failure, unquoted

API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/([a-z-]+))?(?:/([^/]+))?(?:/(.+))?")


def route(hub: Hub, call: Call) -> Reply:
    """The answer to a request.

    Raises:
        Refused: The answer is an error.
    """
    if call.site == "cdn":
        return uploading.taken(hub, call) if call.method == "PUT" else resolve.stored(hub, call)
    if call.path == "/api/whoami-v2":
        return reading.whoami(hub, call)
    match = API.fullmatch(call.path)
    if match and call.method == "GET":
        return _told(hub, call, *match.groups())
    if match and match[2] == "paths-info":
        return reading.paths_info(call, hub.seen(call, unquoted(match[1])), match[3])
    if resolve.CACHED.fullmatch(call.path):
        return resolve.resolve(hub, call)
    if call.path.startswith("/api/") or call.method not in ("GET", "HEAD"):
        return changing.changed(hub, call, match)
    return resolve.resolve(hub, call)


def _told(hub: Hub, call: Call, repo_id: str, what: str | None, revision: str | None, rest: str | None) -> Reply:
    repo = hub.seen(call, unquoted(repo_id))
    revision = revision or "main"
    if what in (None, "revision"):
        return reading.info(hub, call, repo, revision)
    if what == "tree":
        return reading.tree(hub, call, repo, revision, unquoted(rest or ""))
    if what == "refs":
        return reading.refs(repo)
    if what == "commits":
        return reading.commits(hub, call, repo, revision)
    if what == "auth-check":
        (hub.writable if revision == "write" else hub.readable)(call, repo.id)
        return Reply(200)
    raise Refused(failure(404, "Not found"))
