"""A plain HTTP request, for what huggingface_hub would hide: one answer, no redirect followed, nothing tried twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, IncompleteRead
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """`body` is what arrived; `whole` says that it is as long as was announced. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool


def ask(
    url: str, headers: Mapping[str, str] | None = None, *, method: str = "GET", body: bytes = b"", timeout: float = 10
) -> Answer:
    """Raises:
    TimeoutError: Nothing came for `timeout` seconds.
    """
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request(method, f"{parts.path}?{parts.query}".rstrip("?"), body or None, dict(headers or {}))
        reply = connection.getresponse()
        marks = {name.lower(): value for name, value in reply.getheaders()}
        try:
            return Answer(reply.status, marks, reply.read(), True)
        except IncompleteRead as cut:
            return Answer(reply.status, marks, cut.partial, False)
    finally:
        connection.close()
