"""What goes wrong on demand.

A fault names requests by a regular expression and goes off a number of times. It acts at one of three moments: before
the request is looked at (an answer of its own, a redirect, a stall), while the body of a good answer is sent (cut,
flip, short, ...), or while an upload is taken in (cut, flip, rot). A fault of the body passes over requests whose
answer has none, such as HEAD and the redirect to a large file.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from gzip import compress

from .wire import Call, Part, Reply, document

ALWAYS = 1 << 30


class CutOff(Exception):
    """The connection is closed here, on demand."""


@dataclass
class Fault:
    """See `HubServer.fault` for what each field does."""

    match: str
    times: int = 1
    skip: int = 0
    site: str | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    redirect: str | None = None
    stall: float | None = None
    at: int | None = None
    cut: int | None = None
    flip: int | None = None
    rot: int | None = None
    short: int | None = None
    gzip: bool = False
    ignore_range: bool = False
    content_range: str | None = None
    fired: int = 0

    @property
    def early(self) -> bool:
        """Whether it acts before the request is looked at."""
        return self.status is not None or self.redirect is not None or (self.stall is not None and self.at is None)

    def takes(self, call: Call) -> bool:
        """Whether it acts on the body that this request brings."""
        spoils = self.cut is not None or self.flip is not None
        return (call.method == "PUT" and spoils) or (self.rot is not None and call.method in ("PUT", "POST"))

    def answer(self, call: Call, site_url: str) -> Reply | None:
        """The answer in place of the right one; None lets the request pass."""
        if self.redirect is not None:
            place = self.redirect.replace("{self}", f"{site_url}{call.target}")
            return Reply(self.status or 302, b"", {"Location": place, **self.headers})
        if self.status is None:
            return None
        if self.body is not None:
            return Reply(self.status, self.body.encode(), {"Content-Type": "application/json", **self.headers})
        return document({"error": f"{self.status} on demand"}, self.status, self.headers)

    def altered(self, call: Call, reply: Reply) -> Reply:
        """The answer with what the fault changes of its head and of the bytes chosen."""
        if self.ignore_range and isinstance(reply.body, Part) and reply.status == 206:
            headers = {name: value for name, value in reply.headers.items() if name != "Content-Range"}
            return Reply(200, Part(reply.body.blob, 0, reply.body.blob.size), headers)
        if self.content_range is not None and reply.status == 206:
            return reply.adding({"Content-Range": self.content_range})
        if self.short is not None:
            return replace(reply, body=_shortened(reply.body, self.short))
        if self.gzip and reply.status == 200 and "gzip" in call.headers.get("accept-encoding", ""):
            return replace(reply, body=compress(_bytes(reply.body))).adding({"Content-Encoding": "gzip"})
        return reply


class Faults:
    """The faults still to go off."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: list[Fault] = []

    def add(self, fault: Fault) -> int:
        """Its number, for `fired`."""
        with self._lock:
            self._known.append(fault)
            return len(self._known) - 1

    def fired(self, number: int) -> int:
        return self._known[number].fired

    def heal(self) -> None:
        """No fault goes off from now on."""
        with self._lock:
            for fault in self._known:
                fault.times = 0

    def early(self, call: Call) -> Fault | None:
        return self._take(call, lambda fault: fault.early)

    def taking(self, call: Call) -> Fault | None:
        return self._take(call, lambda fault: fault.takes(call))

    def sending(self, call: Call, reply: Reply) -> Fault | None:
        if call.method in ("HEAD", "PUT") or reply.status not in (200, 206) or not len(reply.body):
            return None
        return self._take(call, lambda fault: not fault.early and _acts_on(fault, reply))

    def _take(self, call: Call, suits: Callable[[Fault], bool]) -> Fault | None:
        with self._lock:
            for fault in self._known:
                if fault.times > 0 and suits(fault) and _names(fault, call):
                    if fault.skip > 0:
                        fault.skip -= 1
                        continue
                    fault.times -= 1
                    fault.fired += 1
                    return fault
        return None


def _names(fault: Fault, call: Call) -> bool:
    line = f"{call.method} {call.target}"
    return fault.site in (None, call.site) and re.search(fault.match, line) is not None


def _acts_on(fault: Fault, reply: Reply) -> bool:
    of_range = fault.ignore_range or fault.content_range is not None
    return fault.rot is None and (not of_range or reply.status == 206)


def _shortened(body: bytes | Part, count: int) -> bytes | Part:
    kept = max(len(body) - count, 0)
    return Part(body.blob, body.start, body.start + kept) if isinstance(body, Part) else body[:kept]


def _bytes(body: bytes | Part) -> bytes:
    return body.read(0, len(body)) if isinstance(body, Part) else body
