"""Server-sent events, as far as completions are streamed with them: the `data` of each event, nothing else.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

import re

LARGEST_EVENT = 16 * 1024 * 1024
"""Bytes; an event with the log-probabilities of a few tokens has some kilobytes."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_MARK = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """An event without an end."""


class EventReader:
    """Bytes in, as they arrive; the data of every event that they complete out, however they were cut.

    Each byte is looked at once: an event in many pieces takes no longer than in one.
    """

    def __init__(self) -> None:
        self._begin: bytes | None = b""  # of the stream, as long as it may become a byte order mark
        self._returned = False  # a line ended in a carriage return, to which a line feed may belong
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of each event that `chunk` ends. Raises EventTooLarge."""
        first, *others = _LINE_END.split(self._fresh(chunk))
        found: list[bytes] = []
        self._extend(first)
        for piece in others:
            found += self._ended()
            self._extend(piece)
        return found

    def _fresh(self, chunk: bytes) -> bytes:
        """What of `chunk`, and of what was held back, belongs to lines."""
        if self._begin is not None:
            chunk = self._begin + chunk
            self._begin = chunk if chunk != _MARK and _MARK.startswith(chunk) else None
            if self._begin is not None:
                return b""
            chunk = chunk.removeprefix(_MARK)
        if not chunk:
            return b""
        belongs, self._returned = self._returned, chunk.endswith(b"\r")
        return chunk.removeprefix(b"\n") if belongs else chunk

    def _extend(self, piece: bytes) -> None:
        self._line += piece
        if len(self._line) + self._size > LARGEST_EVENT:
            raise EventTooLarge(f"an event of more than {LARGEST_EVENT:,} bytes")

    def _ended(self) -> list[bytes]:
        """The line is complete; the event that it ends, if it is blank."""
        line = bytes(self._line)
        self._line.clear()
        if line:
            self._take(line)
            return []
        if not self._data:
            return []
        whole = b"\n".join(self._data)
        self._data, self._size = [], 0
        return [whole]

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value) + 1
