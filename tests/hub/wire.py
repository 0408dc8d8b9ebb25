"""What a request asks and what is answered, as values: all that the rooms of the server exchange."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit

from .blobs import Blob


@dataclass(frozen=True)
class Part:
    """The bytes [start, stop) of a stored file."""

    blob: Blob
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self, offset: int, count: int) -> bytes:
        """At most `count` bytes from `offset` bytes into the part on."""
        begin = self.start + offset
        return self.blob.read(begin, min(count, self.stop - begin))


@dataclass(frozen=True)
class Call:
    """One request, its body not read yet. `site` is "api" or "cdn"; header names are in lower case.

    `rot`: the byte of what is uploaded that is stored wrongly, on demand.
    """

    site: str
    method: str
    target: str
    headers: Mapping[str, str]
    body: BinaryIO
    rot: int | None = None

    @property
    def path(self) -> str:
        """Without the query; still quoted, since a quoted slash is no separator."""
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        values = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        return {name: entries[-1] for name, entries in values.items()}

    @property
    def token(self) -> str | None:
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if kind.lower() == "bearer" else None

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            Refused: It is none.
        """
        try:
            return json.loads(self.body.read() or b"{}")
        except ValueError as error:
            raise Refused(failure(400, f"Invalid JSON: {error}")) from error


@dataclass(frozen=True)
class Reply:
    """What is answered; `Content-Length` and `Date` are added when it is sent."""

    status: int
    body: bytes | Part = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def adding(self, headers: Mapping[str, str]) -> Reply:
        return replace(self, headers={**self.headers, **headers})


class Refused(Exception):
    """The request is answered with an error, wherever that was found out."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def document(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """A JSON answer."""
    return Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})


def failure(status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None) -> Reply:
    """An error as the Hub gives it: the message in the body and in `X-Error-Message`, the kind in `X-Error-Code`."""
    marks = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    return document({"error": message}, status, {**marks, **(headers or {})})


def redirect(location: str, status: int = 302, headers: Mapping[str, str] | None = None) -> Reply:
    text = f"Found. Redirecting to {location}".encode()
    return Reply(status, text, {"Content-Type": "text/plain; charset=utf-8", "Location": location, **(headers or {})})


def unquoted(text: str) -> str:
    return unquote(text, errors="strict")
