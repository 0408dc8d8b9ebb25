"""What a commit holds: its files by name, which of them git-lfs keeps elsewhere, and where checkpoints are."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from posixpath import basename, dirname

from checkpoint import CONFIG, INDEX, Problem
from checkpoint.shelf import SHARD_SUFFIX
from ckpt.hooks.git import Git, GitFailed, number

MAX_POINTER = 1024
"""Bytes; its specification says that no pointer is larger."""

MAX_PLAIN = 10 * 1024 * 1024
"""Bytes of a file that the Hub takes without git-lfs: "it contains files larger than 10 MiB" is what it says of others.
"""

_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:ext-[^\n]*\n)*oid sha256:([0-9a-f]{64})\nsize (\d{1,18})\n?"
)
_LINK = "120000"


@dataclass(frozen=True)
class Entry:
    """A file of a tree; `path` is relative to its top, with slashes."""

    mode: str
    oid: str
    size: int
    path: str

    @property
    def is_shard(self) -> bool:
        return self.path.endswith(SHARD_SUFFIX)

    @property
    def is_link(self) -> bool:
        return self.mode == _LINK


@dataclass(frozen=True)
class Pointer:
    """What git-lfs put in a file's place: the SHA-256 of the file, and its size in bytes."""

    sha256: str
    size: int


def files_of(git: Git, tree: str) -> list[Entry]:
    """All files of a tree, those in its folders too; submodules hold none of ours."""
    entries = []
    for record in git.run("ls-tree", "-r", "-z", "-l", "--full-tree", tree).split(b"\0"):
        head, _, path = record.partition(b"\t")
        fields = head.decode(errors="replace").split()
        size = number(fields[3]) if len(fields) == 4 else None
        if fields[1:2] == ["blob"] and size is None:
            raise GitFailed(Problem("git-failed", f"names a file by {head!r}", "git ls-tree"))
        if fields[1:2] == ["blob"] and size is not None:
            entries.append(Entry(fields[0], fields[2], size, os.fsdecode(path)))
    return entries


def is_visible(entry: Entry) -> bool:
    """May a checkpoint hold it? Hidden files are none of its, and `..` leads out of any folder."""
    return all(part and not part.startswith(".") for part in entry.path.split("/"))


def inside(entries: Iterable[Entry], folders: Collection[str]) -> list[Entry]:
    """The visible files in `folders`, and below; all of them where the top is one."""
    starts = tuple(f"{folder}/" if folder else "" for folder in folders)
    return [entry for entry in entries if is_visible(entry) and entry.path.startswith(starts)]


def checkpoints_in(entries: Iterable[Entry]) -> tuple[list[str], list[str]]:
    """The folders that hold a checkpoint, and those that hold .safetensors files, but no config or index.

    The top of a repository is a checkpoint as soon as it holds one of these files: nobody puts an index there for
    nothing. A folder below may hold an adapter, or weights as their authors trained them.
    """
    names: dict[str, set[str]] = {}
    for entry in filter(is_visible, entries):
        names.setdefault(dirname(entry.path), set()).add(basename(entry.path))
    shards = {folder for folder, inside in names.items() if any(name.endswith(SHARD_SUFFIX) for name in inside)}
    indexed = {folder for folder, inside in names.items() if INDEX in inside}
    found = {folder for folder in shards | indexed if not folder or folder in indexed or CONFIG in names[folder]}
    return sorted(found), sorted(shards - found)


def pointers_in(git: Git, tree: str, contents: Mapping[Entry, bytes]) -> dict[Entry, Pointer]:
    """The files whose content git-lfs keeps: pointers at paths that .gitattributes leaves to it.

    A pointer at any other path is what everyone will get, so it is judged as the text that it is.
    """
    found = {}
    for entry, content in contents.items():
        match = _POINTER.fullmatch(content) if len(content) <= MAX_POINTER and not entry.is_link else None
        if match:
            found[entry] = Pointer(match[1].decode(), int(match[2]))
    kept = _kept_by_lfs(git, tree, [entry.path for entry in found]) if found else set()
    return {entry: pointer for entry, pointer in found.items() if entry.path in kept}


def _kept_by_lfs(git: Git, tree: str, paths: list[str]) -> set[str]:
    """The paths with the attribute filter=lfs in this very tree, which needs an index of its own to be asked."""
    with tempfile.TemporaryDirectory(prefix="ckpt-") as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git.run("read-tree", tree, environment=index)
        asked = b"".join(os.fsencode(path) + b"\0" for path in paths)
        said = git.run("check-attr", "-z", "--stdin", "--cached", "filter", given=asked, environment=index)
    fields = [os.fsdecode(field) for field in said.split(b"\0")]
    return {path for path, value in zip(fields[0::3], fields[2::3], strict=False) if value == "lfs"}
