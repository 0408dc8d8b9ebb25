"""The two HTTP servers: requests are read, recorded, spoiled on demand, routed and answered."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from time import sleep
from typing import Any, BinaryIO, cast

from .access import Hub
from .blobs import inverted
from .faults import CutOff, Fault, Faults
from .incoming import Incoming
from .ledger import Ledger, Line
from .routing import route
from .wire import Call, Part, Refused, Reply

CHUNK = 256 << 10


class Site(ThreadingMixIn, TCPServer):
    """One address of the Hub: "api" or "cdn". Not `HTTPServer`, which looks up its host's name and may take seconds."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, name: str, hub: Hub, faults: Faults, ledger: Ledger) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.name, self.hub, self.faults, self.ledger = name, hub, faults, ledger

    @property
    def url(self) -> str:
        return self.hub.url if self.name == "api" else self.hub.cdn

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news; anything else is shown."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection, kept alive over many requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 0

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        line = Line(self.site.name, self.command, self.path, headers)
        self.site.ledger.opened(line)
        try:
            self._serve(line)
        except CutOff:
            self._hang_up()
        finally:
            self.site.ledger.settled(line)

    @property
    def site(self) -> Site:
        return cast(Site, self.server)

    def _serve(self, line: Line) -> None:
        body = Incoming(self.rfile, line)
        call = Call(self.site.name, self.command, self.path, line.headers, cast(BinaryIO, body))
        early = self.site.faults.early(call)
        if early and early.stall:
            self._stall(line, early.stall)
        reply = early.answer(call, self.site.url) if early else None
        if reply is None:
            taking = self.site.faults.taking(call)
            body.spoil(taking)
            reply = self._routed(replace(call, rot=taking.rot if taking else None))
        body.drain()
        fault = self.site.faults.sending(call, reply) if not (early and early.status) else None
        self._send(line, fault.altered(call, reply) if fault else reply, fault)

    def _routed(self, call: Call) -> Reply:
        try:
            return route(self.site.hub, call)
        except Refused as refused:
            return refused.reply

    def _send(self, line: Line, reply: Reply, fault: Fault | None) -> None:
        line.status = reply.status
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if line.method == "HEAD":
            return
        for start, stop in _steps(len(reply.body), fault):
            if fault and fault.stall and fault.at == start:
                self._stall(line, fault.stall)
            if fault and fault.cut is not None and start >= min(fault.cut, len(reply.body)):
                raise CutOff
            self._pass(line, reply.body, start, stop, fault)

    def _pass(self, line: Line, body: bytes | Part, start: int, stop: int, fault: Fault | None) -> None:
        """Sends body[start:stop], straight from the file where no byte of it is to be changed."""
        flips = fault is not None and fault.flip is not None and start <= fault.flip % len(body) < stop
        if isinstance(body, Part) and not flips:
            return self._from_file(line, body, start, stop)
        data = body.read(start, stop - start) if isinstance(body, Part) else body[start:stop]
        if fault is not None and fault.flip is not None and flips:
            data = inverted(data, fault.flip % len(body) - start)
        self.connection.sendall(data)
        line.bytes_sent += len(data)

    def _from_file(self, line: Line, part: Part, start: int, stop: int) -> None:
        begin, end = part.start + start, part.start + stop
        while begin < end:
            sent = os.sendfile(self.connection.fileno(), part.blob.descriptor, begin, end - begin)
            if not sent:
                raise CutOff  # the file became shorter
            begin += sent
            line.bytes_sent += sent

    def _stall(self, line: Line, seconds: float) -> None:
        self.site.ledger.settled(line)
        sleep(seconds)
        self.site.ledger.settled(line, over=False)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed: the ledger has it all."""


def _steps(length: int, fault: Fault | None) -> Iterator[tuple[int, int]]:
    """The body in pieces, with a border wherever the fault acts; the last piece is empty, for a cut at the end."""
    borders = {*range(0, length, CHUNK), length}
    for place in (fault.cut, fault.at) if fault else ():
        borders |= {min(place, length)} if place is not None else set()
    places = sorted(borders)
    yield from zip(places, [*places[1:], length], strict=True)
