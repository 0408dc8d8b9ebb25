"""What changes a repository: made, committed to, branched, tagged, deleted."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from typing import Any

from .access import STRANGER, Hub, valid_id
from .blobs import Blob, inverted
from .repos import GITATTRIBUTES, REGULAR_LIMIT, Entry, Repo, is_large, large, regular
from .uploading import batch, completed, preupload, verify
from .wire import Call, Refused, Reply, document, failure, unquoted

LFS = re.compile(r"/([^/]+/[^/]+)\.git/info/lfs/objects/(batch|verify)")


def changed(hub: Hub, call: Call, match: re.Match[str] | None) -> Reply:
    """The answer to a request that changes something; `match` holds the parts of a path below `/api/models/`."""
    if lfs := LFS.fullmatch(call.path):
        return (batch if lfs[2] == "batch" else verify)(hub, call, unquoted(lfs[1]))
    if call.path.startswith("/api/complete_multipart/"):
        return completed(hub, call)
    if call.path == "/api/validate-yaml":
        return document({"errors": [], "warnings": []})
    if call.path in ("/api/repos/create", "/api/repos/delete"):
        return create(hub, call) if call.method == "POST" else delete(hub, call)
    if match is None or match[3] is None:
        raise Refused(failure(404, "Not found"))
    repo_id, what, name = unquoted(match[1]), match[2], unquoted(match[3])
    if what == "preupload":
        return preupload(hub, call, repo_id, match[3])
    repo = hub.writable(call, repo_id)
    with repo.lock:
        if what == "commit":
            return commit(hub, call, repo, name)
        if what in ("branch", "tag"):
            return _named(call, repo, what, name)
    raise Refused(failure(404, "Not found"))


def create(hub: Hub, call: Call) -> Reply:
    """A new repository, which holds `.gitattributes` only.

    Raises:
        Refused: 409 where it exists, 403 in a namespace that is not the writer's.
    """
    person, asked = hub.writer(call), call.json()
    repo_id = f"{asked.get('organization') or person.name}/{asked['name']}"
    if asked.get("type") not in (None, "model") or not valid_id(repo_id):
        raise Refused(failure(400, f"Invalid repo name: {repo_id}"))
    if repo_id.startswith(f"{STRANGER}/"):
        text = f'You don\'t have the rights to create a model under the namespace "{STRANGER}"'
        raise Refused(failure(403, text))
    url = f"{hub.url}/{repo_id}"
    with hub.lock:
        if repo_id in hub.repos:
            return document({"error": "You already created this model repo", "url": url, "name": repo_id}, 409)
        private = bool(asked.get("private")) or asked.get("visibility") == "private"
        repo = hub.repos[repo_id] = Repo(repo_id, private)
        repo.commit("main", {".gitattributes": regular(Blob.of([GITATTRIBUTES]))}, "initial commit")
    return document({"url": url, "name": repo_id})


def delete(hub: Hub, call: Call) -> Reply:
    person, asked = hub.writer(call), call.json()
    repo = hub.writable(call, f"{asked.get('organization') or person.name}/{asked['name']}")
    del hub.repos[repo.id]
    return Reply(200, b"OK", {"Content-Type": "text/plain"})


def commit(hub: Hub, call: Call, repo: Repo, branch: str) -> Reply:
    """All operations of the NDJSON body as one commit on the branch, or none of them.

    Raises:
        Refused: 412 where the branch is not at the parent that was named, 400 or 404 where an operation cannot be done.
    """
    if "create_pr" in call.query:
        raise Refused(failure(403, "Pull requests are disabled for this repository"))
    if branch not in repo.branches:
        raise Refused(failure(404, f"Invalid rev id: {branch}", "RevisionNotFound"))
    lines = [json.loads(line) for line in call.body.read().splitlines() if line.strip()]
    header: dict[str, str] = next((line["value"] for line in lines if line["key"] == "header"), {})
    if not header.get("summary"):
        raise Refused(failure(400, "A commit needs a summary"))
    parent = repo.branches[branch]
    if not parent.oid.startswith(header.get("parentCommit", "")):
        raise Refused(failure(412, "A commit has happened since. Please refresh and try again."))
    files = dict(parent.files)
    for line in lines:
        _apply(repo, files, line["key"], line["value"], call.rot)
    made = repo.commit(branch, files, header["summary"], header.get("description", ""))
    told = {"success": True, "commitOid": made.oid, "commitUrl": f"{hub.url}/{repo.id}/commit/{made.oid}"}
    return document({**told, "hookOutput": ""})


def _apply(repo: Repo, files: dict[str, Entry], key: str, value: dict[str, Any], rot: int | None) -> None:
    name = value.get("path", "")
    if key == "file":
        files[name] = _small(name, b64decode(value["content"]), rot)
    elif key == "lfsFile":
        files[name] = _large(repo, name, value)
        _attributed(files, name)
    elif key == "deletedFile":
        if files.pop(name, None) is None:
            raise Refused(failure(404, f"A file with this name doesn't exist: {name}", "EntryNotFound"))
    elif key == "deletedFolder":
        inside = [one for one in files if one.startswith(f"{name.rstrip('/')}/")]
        if not inside:
            raise Refused(failure(404, f"A folder with this name doesn't exist: {name}", "EntryNotFound"))
        for one in inside:
            del files[one]
    elif key != "header":
        raise Refused(failure(400, f"Unknown operation: {key}"))


def _small(name: str, content: bytes, rot: int | None) -> Entry:
    if len(content) > REGULAR_LIMIT:
        raise Refused(failure(400, f"Your push was rejected because it contains files larger than 10 MiB: {name}"))
    rotten = rot is not None and rot < len(content)
    return regular(Blob.of([inverted(content, rot) if rot is not None and rotten else content]))


def _large(repo: Repo, name: str, value: dict[str, Any]) -> Entry:
    blob = repo.objects.get(value["oid"])
    if blob is None or value.get("size", blob.size) != blob.size:
        text = f"Your push was rejected because an LFS pointer pointed to a file that does not exist: {name}"
        raise Refused(failure(400, text))
    return large(blob, value["oid"])


def _attributed(files: dict[str, Entry], name: str) -> None:
    """As the Hub does, a large file that no pattern of `.gitattributes` names gets a line of its own there."""
    now = b"".join(files[".gitattributes"].blob.chunks()) if ".gitattributes" in files else b""
    if not is_large(name, 0, b"", now):
        line = f"{name.replace(' ', '[[:space:]]')} filter=lfs diff=lfs merge=lfs -text\n".encode()
        files[".gitattributes"] = regular(Blob.of([now, line]))


def _named(call: Call, repo: Repo, what: str, name: str) -> Reply:
    """A branch or tag made or deleted: `branch/NAME` from a starting point, `tag/REVISION` called as the body says."""
    asked, names = call.json(), repo.branches if what == "branch" else repo.tags
    if call.method == "DELETE":
        if names.pop(name, None) is None:
            raise Refused(failure(404, f"Invalid rev id: {name}", "RevisionNotFound"))
        return Reply(200)
    made, start = (name, asked.get("startingPoint", "main")) if what == "branch" else (asked["tag"], name)
    if made in names:
        raise Refused(failure(409, f"Reference already exists: {made}"))
    names[made] = repo.at(start)
    return document({"success": True})
