"""The input of a batch of blocks that lies on the Hub, fetched before the batch is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checkpoint.draft import Work
from checkpoint.files import Files
from checkpoint.places import File, RemoteFile

Piece = tuple[RemoteFile, int, int]
"""(file, first byte, byte behind it)."""


class Ahead:
    """Reads as `Files` does, from memory what was fetched."""

    def __init__(self, files: Files, batch: Iterable[tuple[Work, int]]) -> None:
        self._files = files
        self._pieces = list(_pieces(files, batch))
        self._data: list[bytearray] = []

    @property
    def is_needed(self) -> bool:
        """Is there anything to fetch?"""
        return bool(self._pieces)

    def fetch(self) -> None:
        """Read all of it, neighbours in one request. Raises UnreadableCheckpoint."""
        self._data = [self._files.read(file, first, last - first) for file, first, last in self._pieces]

    def read_into(self, file: File, offset: int, buffer: memoryview) -> None:
        """Fill `buffer`. Raises UnreadableCheckpoint."""
        for (known, first, last), data in zip(self._pieces, self._data, strict=False):
            if known == file and first <= offset and offset + len(buffer) <= last:
                buffer[:] = memoryview(data)[offset - first : offset - first + len(buffer)]
                return
        self._files.read_into(file, offset, buffer)


def _pieces(files: Files, batch: Iterable[tuple[Work, int]]) -> Iterator[Piece]:
    pending: Piece | None = None
    for work, block in batch:
        file = files.here(work.source.path)
        if not isinstance(file, RemoteFile):
            continue
        offset, nbytes = work.span(block)
        first = work.source.offset + offset
        if pending and pending[0] == file and pending[2] == first:
            pending = (file, pending[1], first + nbytes)
            continue
        if pending:
            yield pending
        pending = (file, first, first + nbytes)
    if pending:
        yield pending
