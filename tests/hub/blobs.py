"""The bytes of published and uploaded files.

A published file is served from where it stands, through a descriptor that stays open: it may be renamed or deleted, a
sparse file of 70 GB costs nothing, and its links are not touched. Uploaded bytes lie in files without a name, which are
gone with the process, whatever ends it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

CHUNK = 1 << 20

_known: dict[tuple[int, ...], tuple[str, str]] = {}


class Changed(Exception):
    """A published file was written to; what it held at that time is lost."""


class Blob:
    """One file's bytes, read at any offset by any thread."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.descriptor = descriptor
        self._name = name
        self.stamp = _stamp(descriptor)
        self.size = self.stamp[2]

    @classmethod
    def at(cls, path: Path) -> Blob:
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC), str(path))

    @classmethod
    def of(cls, chunks: Iterable[bytes]) -> Blob:
        """New bytes, in a nameless file."""
        with tempfile.TemporaryFile() as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            return cls(os.dup(file.fileno()), "uploaded bytes")

    def __del__(self) -> None:
        # Not at a time of our choosing: a request that still sends these bytes holds on to the blob.
        os.close(self.descriptor)

    def read(self, offset: int, count: int) -> bytes:
        return os.pread(self.descriptor, count, offset)

    def chunks(self) -> Iterable[bytes]:
        return (self.read(offset, CHUNK) for offset in range(0, self.size, CHUNK))

    def check(self) -> None:
        """Raises:
        Changed: The file was written to in place since it was published.
        """
        if _stamp(self.descriptor) != self.stamp:
            raise Changed(f"{self._name} was written to after it was published: publish a copy instead")

    def sha256(self) -> str:
        return self._hashes()[0]

    def git_oid(self) -> str:
        """The name git gives these bytes."""
        return self._hashes()[1]

    def _hashes(self) -> tuple[str, str]:
        key = (*self.stamp, os.fstat(self.descriptor).st_ctime_ns)
        if key not in _known:
            sha256, sha1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % self.size)
            for chunk in self.chunks():
                sha256.update(chunk)
                sha1.update(chunk)
            _known[key] = sha256.hexdigest(), sha1.hexdigest()
        return _known[key]


def inverted(data: bytes, at: int) -> bytes:
    """The same bytes but for the one at `at`."""
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def git_oid(data: bytes) -> str:
    """The name git gives a blob of these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _stamp(descriptor: int) -> tuple[int, int, int, int]:
    stat = os.fstat(descriptor)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
