"""The body of a request, taken in piece by piece, spoiled on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .blobs import inverted
from .faults import CutOff, Fault
from .ledger import Line

CHUNK = 256 << 10


class Incoming:
    """The body of a request, by `Content-Length` or in chunks, counted as it is read."""

    def __init__(self, stream: Any, line: Line) -> None:
        self._line = line
        self._chunks = self._checked(_incoming(stream, line))
        self._fault: Fault | None = None
        self._rest = b""

    def spoil(self, fault: Fault | None) -> None:
        self._fault = fault

    def read(self, count: int = -1) -> bytes:
        """All that is left, or up to `count` bytes, at least one before the end."""
        if count < 0:
            return b"".join([self._rest, *self._chunks])
        data = self._rest or next(self._chunks, b"")
        self._rest = data[count:]
        return data[:count]

    def drain(self) -> None:
        for _ in self._chunks:
            pass

    def _checked(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            before = self._line.bytes_received
            self._line.bytes_received += len(chunk)
            fault = self._fault
            if fault and fault.cut is not None and self._line.bytes_received >= fault.cut:
                raise CutOff
            if fault and fault.flip is not None and before <= fault.flip < before + len(chunk):
                yield inverted(chunk, fault.flip - before)
            else:
                yield chunk


def _incoming(stream: Any, line: Line) -> Iterator[bytes]:
    if line.headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int(stream.readline().split(b";")[0], 16):
            yield stream.read(size)
            stream.readline()
        stream.readline()
        return
    left = int(line.headers.get("content-length", 0))
    while left > 0 and (data := stream.read(min(left, CHUNK))):
        left -= len(data)
        yield data
