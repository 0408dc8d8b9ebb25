"""Side files of a checkpoint by name. Those of the Hub are downloaded when they are asked for, one at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from checkpoint.files import CHUNK
from checkpoint.places import RemoteFile

SideFiles = Mapping[str, Path]


class RemoteSideFiles(Mapping[str, Path]):
    """The side files of a repository: names, sizes and hashes are known, a path is that of the Hub cache."""

    def __init__(self, entries: Mapping[str, RemoteFile]) -> None:
        self.entries = entries

    def __getitem__(self, name: str) -> Path:
        """Raises UnreadableCheckpoint where the file cannot be downloaded."""
        from checkpoint.remote.downloading import downloaded

        return downloaded(self.entries[name])

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def size_of(files: SideFiles, name: str) -> int:
    """Bytes of the side file, of a remote one without downloading it."""
    return files.entries[name].size if isinstance(files, RemoteSideFiles) else files[name].stat().st_size


def sha256_of(files: SideFiles, name: str) -> str:
    """SHA-256 of the side file as hexadecimal digits, of a large remote one without downloading it."""
    if isinstance(files, RemoteSideFiles) and (known := files.entries[name].sha256):
        return known
    with files[name].open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_same(ours: SideFiles, theirs: SideFiles, name: str) -> bool:
    """Have both checkpoints the same bytes under `name`? What is remote is compared by its hash."""
    if size_of(ours, name) != size_of(theirs, name):
        return False
    for one, other in ((ours, theirs), (theirs, ours)):
        if isinstance(one, RemoteSideFiles):
            entry = one.entries[name]
            if isinstance(other, RemoteSideFiles):
                return (entry.sha256 or entry.blob) == (other.entries[name].sha256 or other.entries[name].blob)
            return entry.sha256 == sha256_of(other, name) if entry.sha256 else entry.blob == git_blob(other[name])
    with ours[name].open("rb") as left, theirs[name].open("rb") as right:
        return all(left.read(CHUNK) == right.read(CHUNK) for _ in range(0, size_of(ours, name), CHUNK))


def git_blob(path: Path) -> str:
    """The name that git gives to the content of `path`: SHA-1 of a header and the bytes."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            digest.update(data)
    return digest.hexdigest()
