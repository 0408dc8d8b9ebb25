"""Waiting that ends: a thread that waits for a server is woken when the time of an answer is over.

A timeout of a socket is for each read; whoever sends a byte before each of them ends keeps a client for ever.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

CONNECTED = ("connect_tcp.complete", "start_tls.complete")
"""How the names of httpcore's trace events end that bring a new stream."""


class Sockets:
    """The sockets of one client, as far as `note` was told of them."""

    def __init__(self) -> None:
        self._known: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Lock()

    def note(self, name: str, info: Mapping[str, Any]) -> None:
        """A trace event of httpcore."""
        if name.endswith(CONNECTED):
            found = info["return_value"].get_extra_info("socket")
            if isinstance(found, socket.socket):
                with self._lock:
                    self._known.add(found)

    @contextmanager
    def cut_after(self, seconds: float) -> Iterator[threading.Event]:
        """Set the event and end all connections if the block takes longer. Those of other threads end too: a server
        that keeps one answer from ending is given up."""
        over = threading.Event()
        timer = threading.Timer(seconds, self._cut, (over,))
        timer.daemon = True
        timer.start()
        try:
            yield over
        finally:
            timer.cancel()

    def _cut(self, over: threading.Event) -> None:
        over.set()
        with self._lock:
            known = list(self._known)
        for one in known:
            with suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)  # of TLS, too, whose own leaves who reads without it
