"""What git tells of a stranger's repository: trees, contents, pointers of git-lfs, refs that are pushed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from random import Random

from checkpoint import CkptError
from ckpt.hooks.contents import too_large
from ckpt.hooks.git import Git, _contents, without_passwords
from ckpt.hooks.target import pushed_by_git
from ckpt.hooks.tree import Entry, checkpoints_in, files_of, inside, is_visible, pointers_in
from reliability.fuzzing.target import Target, expect

OID = "a" * 40
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12\n"
TREE = (
    f"100644 blob {OID}      12\tmodel.safetensors\0"
    f"100755 blob {OID} 7\tsub/config.json\0160000 commit {OID}       -\tx\0"
)


@dataclass(frozen=True)
class Saying(Git):
    """A git that answers everything with the same bytes: they are what is tried."""

    said: bytes = b""

    def run(self, *arguments: str, given: bytes = b"", environment: Mapping[str, str] | None = None) -> bytes:
        return self.said


def tree(data: bytes) -> None:
    """`git ls-tree` names files; what is taken for part of a checkpoint is inside of the view that is made of it."""
    try:
        entries = files_of(Saying(said=data), "HEAD")
    except CkptError:
        return
    folders, others = checkpoints_in(entries)
    for entry in inside(entries, folders):
        parts = entry.path.split("/")
        expect(all(part not in ("", ".", "..") for part in parts), f"{entry.path!r} leads elsewhere")
        expect(is_visible(entry), f"{entry.path!r} is hidden")
    expect(not set(folders) & set(others), "a folder is one and is none")
    for problem in too_large(entries):
        expect(str(problem).isprintable(), "a problem that is not printable")


def contents(data: bytes) -> None:
    """`git cat-file --batch` brings contents; each is a pointer or is not."""
    try:
        found = list(_contents(BytesIO(data)))
    except CkptError:
        return
    for content in found:
        pointer(content)


def pointer(data: bytes) -> None:
    """A file's content is taken for a pointer only where it says one hash of 64 digits."""
    entry = Entry("100644", OID, len(data), "a")
    kept = pointers_in(Saying(said=b"a\0filter\0lfs\0"), "HEAD", {entry: data})
    for one in kept.values():
        expect(len(one.sha256) == 64 and not set(one.sha256) - set("0123456789abcdef"), f"{one.sha256!r} is no hash")
        expect(one.size >= 0, "a size below nothing")


def refs(data: bytes) -> None:
    """What git writes to a hook's stdin, and what it complains of on stderr."""
    text = data.decode(errors="surrogateescape")
    without_passwords(text)
    try:
        for pushed in pushed_by_git(text):
            expect(bool(pushed.object.strip("0")), "a deleted ref is pushed")
    except CkptError as refusal:
        expect(str(refusal).isprintable() or "\n" in str(refusal), "a refusal that is not printable")


def said(data: bytes) -> None:
    """All of these, by the first byte."""
    readers = (tree, contents, pointer, refs)
    readers[data[0] % len(readers) if data else 0](data[1:])


def seeds() -> Iterator[bytes]:
    yield b"\0" + TREE.encode()
    yield b"\1" + f"{OID} blob {len(POINTER)}\n".encode() + POINTER + b"\n"
    yield b"\2" + POINTER
    yield b"\3" + f"refs/heads/x {OID} refs/heads/x {'0' * 40}\n(delete) {'0' * 40} refs/heads/y {OID}\n".encode()


def mutate(data: bytes, random: Random) -> bytes:
    """Records of a tree with a part of another."""
    if not data or data[0] % 4:
        return data
    records = data[1:].split(b"\0")
    number = random.randrange(len(records))
    head, _, path = records[number].partition(b"\t")
    parts = path.split(b"/")
    piece = random.choice(
        (b"..", b".", b"", b".git", b"a\n", b"\xff", b"model.safetensors.index.json", b"config.json", b"m.safetensors")
    )
    parts[random.randrange(len(parts))] = piece
    records.insert(random.randrange(len(records) + 1), (head or TREE.encode()[:63]) + b"\t" + b"/".join(parts))
    return data[:1] + b"\0".join(records)


WORDS = (
    "100644 blob ",
    "120000 blob ",
    "160000 commit ",
    OID,
    "\\x00",
    "ext-0-x sha256:",
    "oid sha256:",
    "size ",
    " missing\\n",
)

TARGETS = (Target("git", "ls-tree, cat-file, git-lfs pointers, refs on stdin", said, seeds, mutate, WORDS),)
