"""A server on a raw socket that says what a script says, byte by byte, when the script says so.

A script is a function of the request that yields bytes to send, seconds to wait, or `HANG_UP`, which resets the
connection. What is sent is noted with its time, so that what a client measures has something to be compared with.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


class HangUp:
    """Reset the connection."""


HANG_UP = HangUp()

Step = bytes | float | HangUp


@dataclass(frozen=True)
class Request:
    """`number` counts the requests to the same path, from 0."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    number: int
    got: int
    """time.perf_counter_ns when its first bytes were read."""


Script = Callable[[Request], Iterable[Step]]


@dataclass
class Sent:
    """What was sent in answer to a request, with `time.perf_counter_ns` before each send."""

    request: Request
    sends: list[tuple[int, bytes]] = field(default_factory=list)


class ScriptedServer:
    """From `with` to its end. A client's waiting ends when it does, whatever the script still has to say."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.sent: list[Sent] = []
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._connections: list[socket.socket] = []

    def __enter__(self) -> ScriptedServer:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for connection in (self._listener, *self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def requests(self, path: str) -> list[Request]:
        return [sent.request for sent in self.sent if sent.request.path == path]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as incoming:
            while request := self._read(incoming):
                sent = Sent(request)
                with self._lock:
                    self.sent.append(sent)
                if not self._say(connection, sent):
                    return

    def _say(self, connection: socket.socket, sent: Sent) -> bool:
        """Whether the connection goes on."""
        for step in self.script(sent.request):
            if isinstance(step, HangUp):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            if isinstance(step, float):
                if self._over.wait(step):
                    return False
                continue
            sent.sends.append((time.perf_counter_ns(), step))
            connection.sendall(step)
        return True

    def _read(self, incoming: Any) -> Request | None:
        first = incoming.readline()
        if not first:
            return None
        got = time.perf_counter_ns()
        method, path, _ = first.decode("latin-1").split()
        headers: dict[str, str] = {}
        while line := incoming.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        raw = incoming.read(int(headers.get("content-length", 0)))
        with self._lock:
            number = self._counts[path] = self._counts.get(path, -1) + 1
        return Request(method, path, headers, json.loads(raw) if raw else None, number, got)


def answered(body: Any, status: str = "200 OK", kind: str = "application/json", **headers: str) -> bytes:
    """A whole answer. `body`: bytes or text as they stand, anything else as JSON."""
    raw = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(raw)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + raw


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(document: Any) -> bytes:
    """One event of a stream, in a chunk of its own."""
    text = document if isinstance(document, str) else json.dumps(document)
    return chunk(f"data: {text}\n\n".encode())


def models(*names: str, owner: str = "nobody") -> bytes:
    return answered({"object": "list", "data": [{"id": name, "object": "model", "owned_by": owner} for name in names]})


def piece(text: str, finish: str | None = None, counted: int | None = None, prompt: int = 7) -> bytes:
    """An event of a streamed completion, with a running count if `counted`."""
    document: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}
    if counted is not None:
        document["usage"] = {"prompt_tokens": prompt, "completion_tokens": counted, "total_tokens": prompt + counted}
    return event(document)


def total(completion: int, prompt: int = 7) -> bytes:
    """The event that has nothing but the sums."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event({"choices": [], "usage": usage})


def routed(routes: dict[str, Script], owner: str = "nobody") -> Script:
    """A script for each path; a model called `m` is listed, and what no route is for is not found."""

    def script(request: Request) -> Iterator[Step]:
        if request.path in routes:
            yield from routes[request.path](request)
        elif request.path == "/v1/models":
            yield models("m", owner=owner)
        else:
            yield answered({"detail": "Not Found"}, "404 Not Found")

    return script
