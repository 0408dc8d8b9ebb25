"""What the API tells of a repository: its metadata, its tree, its branches and commits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlencode

from .access import USER, Hub
from .repos import Commit, Entry, Repo, pointer
from .wire import Call, Refused, Reply, document, failure, unquoted


def whoami(hub: Hub, call: Call) -> Reply:
    person = hub.person(call)
    if person is None:
        raise Refused(failure(401, "Invalid username or password."))
    token = {"type": "access_token", "accessToken": {"displayName": "tests", "role": person.role}}
    return document({"type": "user", "name": person.name, "fullname": person.name, "orgs": [], "auth": token})


def info(hub: Hub, call: Call, repo: Repo, revision: str) -> Reply:
    """Metadata and file list; sizes and hashes only with `blobs=true`."""
    commit = repo.at(unquoted(revision))
    blobs = _flag(call.query.get("blobs"))
    return document(
        {
            "_id": hashlib.sha1(repo.id.encode()).hexdigest()[:24],
            "id": repo.id,
            "modelId": repo.id,
            "author": repo.id.partition("/")[0],
            "sha": commit.oid,
            "lastModified": commit.date,
            "createdAt": next(iter(repo.commits.values())).date,
            "private": repo.private,
            "gated": "manual" if repo.gated else False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "usedStorage": sum(blob.size for blob in repo.objects.values()),
            "siblings": [_sibling(name, entry, blobs) for name, entry in sorted(commit.files.items())],
        }
    )


def tree(hub: Hub, call: Call, repo: Repo, revision: str, folder: str) -> Reply:
    """Files and folders under a folder, all of them with `recursive`, page by page."""
    commit, prefix = repo.at(unquoted(revision)), f"{folder}/" if folder else ""
    under = {name: entry for name, entry in sorted(commit.files.items()) if name.startswith(prefix)}
    if folder and not under:
        raise Refused(failure(404, f"{folder} does not exist on {revision}", "EntryNotFound"))
    folders = sorted({part for name in under for part in _folders(name) if part.startswith(prefix)})
    listed = [_folder(name, commit) for name in folders]
    listed += [described(name, commit, expand=_flag(call.query.get("expand"))) for name in under]
    if not _flag(call.query.get("recursive")):
        listed = [item for item in listed if "/" not in item["path"][len(prefix) :]]
    return _paged(hub, call, sorted(listed, key=lambda item: (item["type"] == "file", item["path"])))


def paths_info(call: Call, repo: Repo, revision: str) -> Reply:
    """The named files and folders; names that do not exist are left out."""
    commit = repo.at(unquoted(revision))
    form = parse_qs(call.body.read().decode())
    expand, folders = _flag(form.get("expand", [""])[-1]), {f for name in commit.files for f in _folders(name)}
    found = [name.strip("/") for name in form.get("paths", [])]
    files = [described(name, commit, expand=expand) for name in found if name in commit.files]
    return document(files + [_folder(name, commit) for name in found if name in folders])


def refs(repo: Repo) -> Reply:
    def listed(kind: str, names: Mapping[str, Commit]) -> list[dict[str, str]]:
        return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": c.oid} for n, c in names.items()]

    parts = {"branches": listed("heads", repo.branches), "tags": listed("tags", repo.tags)}
    return document({**parts, "converts": [], "pullRequests": []})


def commits(hub: Hub, call: Call, repo: Repo, revision: str) -> Reply:
    history = [*repo.at(unquoted(revision)).ancestry()]
    listed = [
        {"id": c.oid, "title": c.title, "message": c.message, "date": c.date, "authors": [{"user": USER}]}
        for c in history
    ]
    return _paged(hub, call, listed)


def described(name: str, commit: Commit, *, expand: bool = False) -> dict[str, Any]:
    """A file as the tree lists it."""
    entry = commit.files[name]
    told: dict[str, Any] = {"type": "file", "path": name, "oid": entry.oid, "size": entry.size}
    if entry.lfs:
        told["lfs"] = {"oid": entry.lfs, "size": entry.size, "pointerSize": len(pointer(entry.lfs, entry.size))}
    if expand:
        last = commit.last_change(name)
        told["lastCommit"] = {"id": last.oid, "title": last.title, "date": last.date}
    return told


def _sibling(name: str, entry: Entry, blobs: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"rfilename": name}
    if blobs:
        told |= {"size": entry.size, "blobId": entry.oid}
        if entry.lfs:
            size = len(pointer(entry.lfs, entry.size))
            told["lfs"] = {"sha256": entry.lfs, "size": entry.size, "pointerSize": size}
    return told


def _folder(name: str, commit: Commit) -> dict[str, Any]:
    inside = sorted((n, e.oid) for n, e in commit.files.items() if n.startswith(f"{name}/"))
    return {"type": "directory", "path": name, "oid": hashlib.sha1(repr(inside).encode()).hexdigest(), "size": 0}


def _folders(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _flag(value: str | None) -> bool:
    return (value or "").lower() in ("true", "1")


def _paged(hub: Hub, call: Call, listed: Sequence[dict[str, Any]]) -> Reply:
    start, limit = int(call.query.get("cursor", 0)), int(call.query.get("limit", hub.page))
    headers = {"X-Total-Count": str(len(listed))}
    if start + limit < len(listed):
        query = urlencode({**call.query, "cursor": str(start + limit)})
        headers["Link"] = f'<{hub.url}{call.path}?{query}>; rel="next"'
    return document(listed[start : start + limit], headers=headers)
