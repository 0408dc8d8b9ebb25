"""Addresses of repositories, and the names of files that a Hub lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from types import SimpleNamespace

from checkpoint import Address, UnreadableCheckpoint
from checkpoint.places import SCHEME, place_of
from checkpoint.remote.listing import _files
from reliability.fuzzing.target import Target, expect


def address(data: bytes) -> None:
    """An address says again what it was read from; a token in it is shown to nobody."""
    text = SCHEME + data.decode(errors="surrogateescape")
    try:
        found = place_of(text)
    except UnreadableCheckpoint as refusal:
        expect(str(refusal).isprintable(), "a refusal that is not printable")
        return
    expect(isinstance(found, Address), "an address that is a folder")
    if isinstance(found, Address):
        expect(Address.parse(str(found)) == found, "another address when it is read again")
        expect(set(found.repo) <= set(ALLOWED) and found.repo.count("/") <= 1, f"{found.repo!r} is no repository")


def listing(data: bytes) -> None:
    """The files that a Hub lists are inside of the folder they go to, or all are refused."""
    names = data.decode(errors="surrogateescape").split("\n")
    siblings = [SimpleNamespace(rfilename=name, lfs=None, size=1, blob_id="0") for name in names]
    try:
        files = list(_files(siblings, "o/n", "0" * 40))
    except UnreadableCheckpoint as refusal:
        expect(all(str(problem).isprintable() for problem in refusal.problems), "a refusal that is not printable")
        return
    for file in files:
        path = PurePosixPath(file.name)
        expect(not path.is_absolute() and ".." not in path.parts, f"{file.name!r} leads elsewhere")
        expect(path.as_posix() == file.name and file.name.isprintable(), f"{file.name!r} is spelled otherwise")


def either(data: bytes) -> None:
    """Both, by the first byte."""
    (listing if data[:1] == b"\n" else address)(data[1:])


def seeds() -> Iterator[bytes]:
    yield from (b"@o/n", b"@o/n@main", b"@models/o/n@refs/pr/1", b"@user:hf_abcdefghijkl@host/o/n", b"@gpt2")
    yield b"\nconfig.json\nmodel.safetensors\nsub/dir/a.txt"


ALLOWED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/"
WORDS = ("hf_", "@", "refs/pr/1", "..", "/", "\\\\", "%2e", "models/", "\n")

TARGETS = (Target("address", "hf:// addresses, and names in a Hub's listing", either, seeds, None, WORDS, longest=512),)
