"""Large files on their way in: what goes to LFS, where it is sent to, whether it is what was announced."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from .access import Hub
from .blobs import Blob, inverted
from .repos import Commit, Repo, is_large
from .resolve import check_signature, denied, sign
from .wire import Call, Refused, Reply, document, failure, unquoted


def preupload(hub: Hub, call: Call, repo_id: str, revision: str) -> Reply:
    """For each file: whether it goes to LFS, whether `.gitignore` leaves it out, and what is there now."""
    commit = hub.writable(call, repo_id).at(unquoted(revision))
    asked = call.json()
    ignore = asked.get("gitIgnore", _text(commit, ".gitignore").decode())
    return document({"files": [_judged(commit, file, ignore.splitlines()) for file in asked["files"]]})


def batch(hub: Hub, call: Call, repo_id: str) -> Reply:
    """Where to send each object; nowhere if it is there already."""
    repo = hub.writable(call, repo_id)
    asked = call.json()
    parts = "multipart" in asked.get("transfers", ()) and any(item["size"] > hub.part for item in asked["objects"])
    told = [_actions(hub, repo, item["oid"], item["size"], parts) for item in asked["objects"]]
    return document({"transfer": "multipart" if parts else "basic", "objects": told})


def verify(hub: Hub, call: Call, repo_id: str) -> Reply:
    """Whether an object arrived."""
    repo, asked = hub.writable(call, repo_id), call.json()
    stored = repo.objects.get(asked["oid"])
    if stored is None or stored.size != asked["size"]:
        raise Refused(failure(404, "Object was not found or has another size"))
    return Reply(200)


def taken(hub: Hub, call: Call) -> Reply:
    """A PUT of an object or of a part of one.

    Raises:
        Refused: The object is not what its name says; a part is only judged when all parts are there.
    """
    check_signature(hub, call)
    repo, oid = _place(hub, call, "/uploads/")
    digest = hashlib.sha256()
    blob = Blob.of(_spoiled(_hashed(call, digest), call.rot))
    number = call.query.get("partNumber")
    if number:
        hub.parts.setdefault((repo.id, oid), {})[int(number)] = blob
    elif digest.hexdigest() != oid:
        raise Refused(_mismatch())
    else:
        repo.objects[oid] = blob
    return Reply(200, headers={"ETag": f'"{digest.hexdigest()[:32]}"'})


def completed(hub: Hub, call: Call) -> Reply:
    """All parts of an object are there: they become one.

    Raises:
        Refused: Parts are missing, or together they are not what the object's name says.
    """
    check_signature(hub, call)
    repo, oid = _place(hub, call, "/api/complete_multipart/")
    asked, parts = call.json(), hub.parts.get((repo.id, oid), {})
    numbers = [part["partNumber"] for part in asked.get("parts", ())]
    if not numbers or not set(numbers) <= set(parts):
        raise Refused(failure(400, "One or more of the specified parts could not be found"))
    blob = Blob.of(chunk for number in numbers for chunk in parts[number].chunks())
    if blob.sha256() != oid:
        raise Refused(_mismatch())
    repo.objects[oid] = blob
    del hub.parts[repo.id, oid]
    return document({"success": True})


def _judged(commit: Commit, file: dict[str, Any], ignored: list[str]) -> dict[str, Any]:
    name, now = file["path"], commit.files.get(file["path"])
    rules = _text(commit, ".gitattributes") if ".gitattributes" in commit.files else None
    mode = "lfs" if is_large(name, file["size"], b64decode(file["sample"]), rules) else "regular"
    # What is there is told as the client names it: sha256 of a large file, git's name of a small one.
    told = {"path": name, "uploadMode": mode, "shouldIgnore": _is_ignored(name, ignored)}
    return told | ({"oid": now.etag} if now else {})


def _is_ignored(name: str, patterns: list[str]) -> bool:
    names = {name, name.rpartition("/")[2], *(f"{part}/" for part in name.split("/")[:-1])}
    return any(fnmatchcase(one, pattern) for one in names for pattern in patterns if pattern)


def _text(commit: Commit, name: str) -> bytes:
    return b"".join(commit.files[name].blob.chunks()) if name in commit.files else b""


def _actions(hub: Hub, repo: Repo, oid: str, size: int, parts: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"oid": oid, "size": size, "authenticated": True}
    if oid in repo.objects:
        return told
    verify = {"href": f"{hub.url}/{repo.id}.git/info/lfs/objects/verify"}
    if not parts or size <= hub.part:
        return told | {
            "actions": {"upload": {"href": sign(hub, hub.cdn, f"/uploads/{repo.id}/{oid}")}, "verify": verify}
        }
    count = -(-size // hub.part)
    places = {
        f"{n:05}": sign(hub, hub.cdn, f"/uploads/{repo.id}/{oid}", partNumber=str(n)) for n in range(1, count + 1)
    }
    header = {"chunk_size": str(hub.part), **places}
    finish = sign(hub, hub.url, f"/api/complete_multipart/{repo.id}/{oid}")
    return told | {"actions": {"upload": {"href": finish, "header": header}, "verify": verify}}


def _place(hub: Hub, call: Call, prefix: str) -> tuple[Repo, str]:
    repo_id, _, oid = call.path.removeprefix(prefix).rpartition("/")
    if not call.path.startswith(prefix) or repo_id not in hub.repos:
        raise Refused(denied())
    return hub.repos[repo_id], oid


def _hashed(call: Call, digest: Any) -> Iterator[bytes]:
    while chunk := call.body.read(1 << 20):
        digest.update(chunk)
        yield chunk


def _spoiled(chunks: Iterable[bytes], at: int | None) -> Iterator[bytes]:
    """The same bytes but for the one at `at`."""
    begin = 0
    for chunk in chunks:
        hit = at is not None and begin <= at < begin + len(chunk)
        yield inverted(chunk, at - begin) if at is not None and hit else chunk
        begin += len(chunk)


def _mismatch() -> Reply:
    # What S3 says, to which the Hub's upload addresses lead.
    text = b"<Error><Code>XAmzContentSHA256Mismatch</Code><Message>The provided SHA256 does not match</Message></Error>"
    return Reply(400, text, {"Content-Type": "application/xml"})
