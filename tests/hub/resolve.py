"""Files: `resolve` on the API's own address, and the "CDN", where large ones are fetched by a signed path."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from .access import Hub
from .blobs import Blob, Changed
from .repos import Entry
from .wire import Call, Part, Refused, Reply, failure, redirect, unquoted

RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
CACHED = re.compile(r"/api/resolve-cache/models/([^/]+/[^/]+)/([0-9a-f]{40})/(.+)")
STORED = re.compile(r"/blobs/([^/]+/[^/]+)/([0-9a-f]{64})/(.+)")


def resolve(hub: Hub, call: Call) -> Reply:
    """A small file itself, or the way to a large one; if so asked, a small one by a detour on the same host."""
    match = RESOLVE.fullmatch(call.path) or CACHED.fullmatch(call.path)
    if not match or call.method not in ("GET", "HEAD"):
        raise Refused(failure(404, "Not found"))
    repo = hub.readable(call, match[1])
    commit, name = repo.at(unquoted(match[2])), unquoted(match[3])
    marks = {"X-Repo-Commit": commit.oid}
    if name not in commit.files:
        raise Refused(failure(404, "Entry not found", "EntryNotFound", marks))
    entry = commit.files[name]
    marks |= {"Accept-Ranges": "bytes", "Content-Disposition": f"inline; filename*=UTF-8''{quote(name)}"}
    if entry.lfs is None and hub.relay and not CACHED.fullmatch(call.path):
        etag = urlencode({"etag": f'"{entry.etag}"'})
        return redirect(f"/api/resolve-cache/models/{repo.id}/{commit.oid}/{quote(name)}?{etag}", 307, marks)
    if entry.lfs is None:
        return content(call, entry.blob, {"ETag": f'"{entry.etag}"', **marks})
    marks |= {"X-Linked-ETag": f'"{entry.etag}"', "X-Linked-Size": str(entry.size), "Vary": "Origin, Accept"}
    return redirect(_signed_place(hub, match[1], name, entry), headers=marks)


def stored(hub: Hub, call: Call) -> Reply:
    """A large file, to whoever has the signed path. The token is neither needed nor looked at."""
    match = STORED.fullmatch(call.path)
    if not match or call.method not in ("GET", "HEAD"):
        return denied()
    check_signature(hub, call)
    objects = hub.repos[match[1]].objects if match[1] in hub.repos else {}
    if match[2] not in objects:
        return Reply(404, b"<Error><Code>NoSuchKey</Code></Error>", {"Content-Type": "application/xml"})
    marks = {"ETag": f'"{match[2]}"', "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    return content(call, objects[match[2]], marks)


def content(call: Call, blob: Blob, headers: Mapping[str, str]) -> Reply:
    """The file, or the one range of it that is asked for: 206, or 416 where it lies outside.

    Several ranges, and a range whose `If-Range` is out of date, are answered by the whole file, as RFC 9110 allows.
    """
    try:
        blob.check()
    except Changed as changed:
        raise Refused(failure(500, str(changed))) from changed
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", call.headers.get("range", "").replace(" ", ""))
    if not asked or asked.group(0) == "bytes=-" or call.headers.get("if-range", headers["ETag"]) != headers["ETag"]:
        return Reply(200, Part(blob, 0, blob.size), headers)
    start, stop = _range(asked[1], asked[2], blob.size)
    if start >= stop:
        return Reply(416, b"", {**headers, "Content-Range": f"bytes */{blob.size}"})
    return Reply(206, Part(blob, start, stop), {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{blob.size}"})


def sign(hub: Hub, site: str, path: str, **query: str) -> str:
    """An address that needs no token."""
    text = f"{path}?{urlencode({**query, 'Expires': '4102444800'})}"
    return f"{site}{text}&Signature={_signature(hub, text)}"


def check_signature(hub: Hub, call: Call) -> None:
    """Raises:
    Refused: The address is not one that `sign` gave out.
    """
    text, _, signature = call.target.rpartition("&Signature=")
    if not hmac.compare_digest(signature, _signature(hub, text)):
        raise Refused(denied())


def denied() -> Reply:
    return Reply(403, b"<Error><Code>AccessDenied</Code></Error>", {"Content-Type": "application/xml"})


def _range(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:
        return max(size - int(last), 0), size
    return int(first), min(int(last) + 1, size) if last else size


def _signature(hub: Hub, text: str) -> str:
    return hmac.new(hub.secret, text.encode(), hashlib.sha256).hexdigest()


def _signed_place(hub: Hub, repo_id: str, name: str, entry: Entry) -> str:
    return sign(hub, hub.cdn, f"/blobs/{repo_id}/{entry.lfs}/{quote(name)}")
