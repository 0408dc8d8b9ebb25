"""Requests and answers over HTTP: every failure becomes a ServerFault, and nothing is believed to end by itself."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkpoint.errors import Problem, require
from serving.address import ServerAddress
from serving.cutting import Sockets
from serving.faults import Declined, ServerFault, quoted
from serving.reading import value_of
from serving.sse import EventReader, EventTooLarge

if TYPE_CHECKING:
    import httpx

LARGEST_ANSWER = 64 * 1024 * 1024
"""Bytes. The log-probabilities of 100,000 tokens are some 20 MB. Empty lists take 21 times their text in memory."""

MOST_EVENTS = 300_000
"""Of one stream; each is a token or more."""

CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 4.0
"""Uvicorn, which serves vLLM, SGLang and transformers, closes what was idle for 5 seconds."""

STREAM_END = b"[DONE]"


@dataclass(frozen=True)
class Arrival:
    """The data of one event of a stream; `at` by `time.perf_counter_ns`, when its last byte was read."""

    at: int
    data: bytes


class Wire:
    """Connections to one server, kept open between requests. Safe to use from several threads.

    `timeout`: seconds that a whole answer may take.
    """

    def __init__(self, address: ServerAddress, timeout: float) -> None:
        require("asking a server", "httpx", extra="serve")
        import httpx

        self.address = address
        self.timeout = timeout
        headers = {"accept-encoding": "identity", "user-agent": "ckpt"}
        if address.key:
            headers["authorization"] = f"Bearer {address.key}"
        limits = httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_SECONDS)
        waits = httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS), pool=None)
        # a proxy of the environment is not for a server on this machine; a redirect would carry the key elsewhere
        self._sockets = Sockets()
        self._client = httpx.Client(
            headers=headers, limits=limits, timeout=waits, follow_redirects=False, trust_env=not address.local
        )

    def close(self) -> None:
        self._client.close()

    def text(self, url: str) -> str:
        """What `GET url` answers. Raises ServerFault, Declined."""
        with self._open("GET", url, None) as (response, deadline):
            return self._whole(response, deadline).decode("utf-8", "replace")

    def json(self, url: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON value that `GET url`, or a `POST` of `body`, answers. Raises ServerFault, Declined."""
        method = "GET" if body is None else "POST"
        with self._open(method, url, body) as (response, deadline):
            return self.value(self._whole(response, deadline))

    def events(self, url: str, body: Mapping[str, Any]) -> tuple[int, list[Arrival], int]:
        """When the request was sent, all events of its stream, and when the stream ended.

        The connection stands when the clock starts. Events are read after the stream, so that reading one does not
        delay the next. Raises ServerFault, Declined.
        """
        sent = [time.perf_counter_ns()]
        with self._open("POST", url, body, sent) as (response, deadline):
            kind = response.headers.get("content-type", "")
            if "event-stream" not in kind:
                said = quoted(kind, self.address.key) or "something untyped"
                raise self.fault("stream-missing", f"no stream of events but {said}")
            arrivals: list[Arrival] = []
            reader = EventReader()
            for chunk in self._chunks(response, deadline):
                now = time.perf_counter_ns()
                for data in self._fed(reader, chunk):
                    if data.strip() == STREAM_END:
                        return sent[-1], arrivals, now
                    arrivals.append(Arrival(now, data))
                if len(arrivals) > MOST_EVENTS:
                    raise self.fault("answer-too-large", f"a stream of more than {MOST_EVENTS:,} events")
        return sent[-1], arrivals, time.perf_counter_ns()

    def value(self, raw: bytes) -> Any:
        """`raw` as JSON. Raises ServerFault."""
        try:
            return value_of(raw)
        except ValueError as error:
            text = quoted(raw.decode("utf-8", "replace"), self.address.key)
            raise self.fault("answer-garbled", f"not JSON ({type(error).__name__}): {text}") from error

    def fault(self, code: str, found: str, *, expected: str = "", remedy: str = "") -> ServerFault:
        return ServerFault(Problem(code, found, file=self.address.root, expected=expected, remedy=remedy))

    def _fed(self, reader: EventReader, chunk: bytes) -> list[bytes]:
        try:
            return reader.feed(chunk)
        except EventTooLarge as error:
            raise self.fault("answer-too-large", str(error)) from error

    @contextmanager
    def _open(
        self, method: str, url: str, body: Mapping[str, Any] | None, sent: list[int] | None = None
    ) -> Iterator[tuple[httpx.Response, float]]:
        """A response whose status is a success, and the moment by which all of it must be there."""
        deadline = time.monotonic() + self.timeout
        with self._failing(), self._in_time() as over:
            response = self._sent(self._request(method, url, body, [] if sent is None else sent), over)
            try:
                self._check(response, deadline)
                yield response, deadline
            finally:
                response.close()

    def _request(self, method: str, url: str, body: Mapping[str, Any] | None, sent: list[int]) -> httpx.Request:
        """A request that tells `sent` when it is sent. Halves of characters in a text are sent as escapes."""
        extensions = {"trace": _clock(sent, self._sockets)}
        if body is None:
            return self._client.build_request(method, url, extensions=extensions)
        content, kind = json.dumps(body).encode(), {"content-type": "application/json"}
        return self._client.build_request(method, url, content=content, headers=kind, extensions=extensions)

    @contextmanager
    def _in_time(self) -> Iterator[threading.Event]:
        """The time of a whole answer, head and body; the event is set when it is over. Raises ServerFault then."""
        import httpx

        with self._sockets.cut_after(self.timeout) as over:
            try:
                yield over
            except httpx.HTTPError as error:
                if over.is_set():
                    raise self._late() from error
                raise
        if over.is_set():  # a body without a length ends where its connection does
            raise self._late()

    def _late(self) -> ServerFault:
        return self.fault("server-timeout", f"the answer is not complete after {self.timeout:g} s")

    def _sent(self, request: httpx.Request, over: threading.Event) -> httpx.Response:
        """The response, its body not read yet. Sent once more where the connection was gone before the first byte of an
        answer: servers close those that they keep, after an error or for being idle, at any moment."""
        import httpx

        try:
            return self._client.send(request, stream=True)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            if over.is_set():
                raise
            return self._client.send(request, stream=True)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Have every failure of the transport said as a ServerFault."""
        import httpx

        try:
            yield
        except httpx.ConnectError as error:
            remedy = "Is the server running, and does it listen there?"
            raise self.fault("server-unreachable", _words(error, self.address.key), remedy=remedy) from error
        except httpx.TimeoutException as error:
            raise self.fault("server-timeout", f"no answer: {type(error).__name__} ({self.timeout:g} s)") from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError) as error:  # of a host xn--
            raise self.fault("connection-broken", _words(error, self.address.key)) from error

    def _check(self, response: httpx.Response, deadline: float) -> None:
        """Raise Declined unless the status is a success."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise self.fault("answer-encoded", "the answer is compressed, which was not asked for")
        if response.is_success:
            return
        if response.is_redirect:
            place = quoted(response.headers.get("location", "nowhere"), self.address.key)
            found = f"redirects to {place}"
            raise self._declined(response, "server-redirect", found, "Give the address where the server really is.")
        text = quoted(self._said(response, deadline), self.address.key)
        raise self._declined(response, "server-declined", f"HTTP {response.status_code}: {text or 'no reason given'}")

    def _declined(self, response: httpx.Response, code: str, found: str, remedy: str = "") -> Declined:
        return Declined(response.status_code, Problem(code, found, file=self.address.root, remedy=remedy))

    def _said(self, response: httpx.Response, deadline: float) -> str:
        """The reason in an error's body: OpenAI's `error.message`, FastAPI's `detail`, or the text itself."""
        raw = self._whole(response, deadline)
        text = raw.decode("utf-8", "replace")
        try:
            value = value_of(raw)
        except ValueError:
            return text
        return reason(value) or text

    def _whole(self, response: httpx.Response, deadline: float) -> bytes:
        return b"".join(self._chunks(response, deadline))

    def _chunks(self, response: httpx.Response, deadline: float) -> Iterator[bytes]:
        """The body as it arrives, of no more bytes and no longer than a whole answer may be."""
        size = 0
        for chunk in response.iter_raw():
            size += len(chunk)
            if size > LARGEST_ANSWER:
                raise self.fault("answer-too-large", f"an answer of more than {LARGEST_ANSWER:,} bytes")
            if time.monotonic() > deadline:
                raise self._late()
            yield chunk


def reason(value: Any) -> str:
    """What an error document says, empty if it is none: `error.message`, `error`, `message` or `detail`."""
    if not isinstance(value, Mapping):
        return ""
    error = value.get("error")
    if isinstance(error, Mapping):
        return str(error.get("message") or error)
    said = error or (value.get("message") if value.get("object") == "error" else None) or value.get("detail")
    return "" if said is None else str(said)


def _clock(sent: list[int], sockets: Sockets) -> Any:
    """Notes when the first byte of a request is written: connecting is over by then. Tells `sockets` of new ones."""

    def note(name: str, info: Mapping[str, Any]) -> None:
        sockets.note(name, info)
        if name.endswith("send_request_headers.started"):
            sent.append(time.perf_counter_ns())

    return note


def _words(error: Exception, secret: str | None) -> str:
    return quoted(str(error), secret) or type(error).__name__
