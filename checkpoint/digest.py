"""The hashes of a shard: of the file as the Hub knows it, and of each tensor in it, in one pass over its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Digest:
    """SHA-256 as hexadecimal digits, of a file and by name of each tensor in it; empty where none was asked for."""

    sha256: str = ""
    tensors: Mapping[str, str] = field(default_factory=dict)


class Hashing:
    """A file's hashes while its bytes come in order. `spans` are (tensor, first byte, byte behind it) in order."""

    def __init__(self, spans: Iterable[tuple[str, int, int]]) -> None:
        self._file = hashlib.sha256()
        self._tensor = hashlib.sha256()
        self._tensors: dict[str, str] = {}
        self._spans = iter(spans)
        self._span = next(self._spans, None)
        self._position = 0

    def update(self, data: memoryview) -> None:
        """Take the next bytes."""
        self._file.update(data)
        end = self._position + len(data)
        while self._span is not None and self._span[1] < end:
            name, first, last = self._span
            self._tensor.update(data[max(first - self._position, 0) : last - self._position])
            if last > end:
                break
            self._close(name)
        self._position = end

    def result(self) -> Digest:
        """The hashes, once all bytes have come."""
        while self._span is not None:  # what holds no bytes begins where the file ends
            self._close(self._span[0])
        return Digest(self._file.hexdigest(), self._tensors)

    def _close(self, name: str) -> None:
        self._tensors[name] = self._tensor.hexdigest()
        self._tensor = hashlib.sha256()
        self._span = next(self._spans, None)
