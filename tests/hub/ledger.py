"""What was asked and how many bytes went each way."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any

SETTLE = 1.0  # seconds to wait for requests that are nearly over


@dataclass
class Line:
    """One request. `over` is set when its last byte was sent, or while it is stalled on demand."""

    site: str
    method: str
    path: str
    headers: Mapping[str, str]
    status: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    over: bool = field(default=False)


class Ledger:
    """All requests in the order they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: list[Line] = []

    def opened(self, line: Line) -> None:
        with self._changed:
            self._lines.append(line)

    def settled(self, line: Line, over: bool = True) -> None:
        with self._changed:
            line.over = over
            self._changed.notify_all()

    def reset(self) -> None:
        self.told()
        with self._changed:
            self._lines.clear()

    def told(self) -> list[dict[str, Any]]:
        """Every request so far; those still being answered are waited for, but not long."""
        end = monotonic() + SETTLE
        with self._changed:
            while not all(line.over for line in self._lines) and (left := end - monotonic()) > 0:
                self._changed.wait(left)
            return [asdict(line) for line in self._lines]
