"""A server on loopback that says what it is told to say, to harm who asks it.

It speaks enough of OpenAI's protocol for `ckpt latency` and `ckpt fidelity` to come to their end.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Step = bytes | float
"""Bytes to send, or seconds to wait."""

ACCEPTED = "vllm:spec_decode_num_accepted_tokens"


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]
    body: Any = field(default=None)

    @property
    def is_streamed(self) -> bool:
        return isinstance(self.body, dict) and bool(self.body.get("stream"))


Say = Callable[[Request], Iterable[Step]]


class Answering:
    """The server, from `with` to its end; `asked` is what it was asked. Each request has a connection of its own."""

    def __init__(self, say: Say) -> None:
        self.asked: list[Request] = []
        self._say = say
        self._over = threading.Event()

    def __enter__(self) -> Answering:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError), connection, connection.makefile("rb") as incoming:
            request = _read(incoming)
            self.asked.append(request)
            for step in self._say(request):
                if isinstance(step, bytes):
                    connection.sendall(step)
                elif self._over.wait(step):
                    return


def _read(incoming: Any) -> Request:
    """Raises ValueError where the client has hung up."""
    _, path, _ = incoming.readline().decode("latin-1").split()
    headers: dict[str, str] = {}
    while line := incoming.readline().strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    raw = incoming.read(int(headers.get("content-length", 0)))
    return Request(path, headers, json.loads(raw) if raw else None)


def head(kind: bytes = b"application/json", status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    """The head of an answer that ends with its connection."""
    return b"HTTP/1.1 " + status + b"\r\nContent-Type: " + kind + b"\r\n" + more + b"Connection: close\r\n\r\n"


def answered(body: Any, status: bytes = b"200 OK") -> bytes:
    """A whole answer. `body`: bytes or text as they stand, anything else as JSON."""
    text = body if isinstance(body, (bytes, str)) else json.dumps(body)
    return head(status=status) + (text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))


def event(document: Any) -> bytes:
    return f"data: {document if isinstance(document, str) else json.dumps(document)}\n\n".encode()


STREAM = head(b"text/event-stream")


def speaking(name: str, secret: str = "") -> Say:
    """A server that works, and calls everything `name`: its model, its release, how answers end, labels; what it says
    is that, too. It says `secret` wherever nobody wants to read an answer."""
    called = name + secret

    def say(request: Request) -> Iterator[Step]:
        match request.path:
            case "/v1/models":
                listed = [{"id": called, "object": called, "owned_by": "vllm"}, {"id": 1, "owned_by": [name]}]
                yield answered({"object": "list", "data": listed})
            case "/version":
                yield answered({"version": called})
            case "/metrics":
                yield head(b"text/plain") + _page(called).encode("utf-8", "surrogatepass")
            case "/tokenize":
                yield answered({"tokens": list(range(1, 1 + len(_asked(request.body).split())))})
            case _ if request.is_streamed:
                yield STREAM
                yield from (event(_choice(request, name, called, count)) for count in (1, 2))
                yield event("[DONE]")
            case _:
                yield answered(_choice(request, name, called, 2))

    return say


def _asked(body: Mapping[str, Any]) -> str:
    messages = body.get("messages") or ({"content": body.get("prompt", "")},)
    return " ".join(str(message["content"]) for message in messages)


def _choice(request: Request, name: str, called: str, count: int) -> dict[str, Any]:
    """An answer, or a part of one, with log-probabilities of all that was echoed."""
    prompt = request.body.get("prompt")
    echoed = len(prompt) if isinstance(prompt, list) else 1
    first = None if request.body.get("echo") else -0.5
    scored = {"tokens": [called] * echoed, "token_logprobs": [first, *[-0.5] * (echoed - 1)]}
    choice: dict[str, Any] = {"finish_reason": called if count == 2 else None, "object": called, "logprobs": scored}
    part = "delta" if request.is_streamed else "message"
    choice |= {part: {"role": called, "content": name}} if "messages" in request.body else {"text": name}
    usage = {"prompt_tokens": 5, "completion_tokens": count}
    return {"id": called, "model": called, "choices": [choice], "usage": usage}


def _page(called: str) -> str:
    label = called.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    of = f'{{model_name="{label}",engine="{label}"}}'
    lines = [f"vllm:spec_decode_num_drafts_total{of} 1", f"vllm:spec_decode_num_draft_tokens_total{of} 1"]
    lines += [f"{ACCEPTED}_total{of} 1", f'{ACCEPTED}_per_pos_total{{position="{label}"}} 1', f"# HELP {called}"]
    return "\n".join(lines) + "\n"
