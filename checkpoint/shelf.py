"""What a survey asks of the place where a checkpoint lies, and the answers of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from checkpoint.document import Document, read_document
from checkpoint.errors import Problem, UnreadableCheckpoint
from checkpoint.files import stays_inside
from checkpoint.header import Header, moved_header, read_header, stamp
from checkpoint.places import Root
from checkpoint.wholefile import is_part

SHARD_SUFFIX = ".safetensors"

DEEPEST = 64
"""Folders in one another; whoever walks them calls itself for each."""

Known = tuple[Mapping[str, Header], Document | None]
"""Headers and the index that were read before, and need not be read again where the files are the same."""


class Shelf(Protocol):
    """A place with files. What is wrong with one is added to `problems`, where they are given."""

    @property
    def root(self) -> Root:
        """The place itself."""

    def shards(self) -> list[str]:
        """Every file at the top that is named as a shard is, sorted."""

    def document(self, name: str, problems: list[Problem], known: Document | None = None) -> Document | None:
        """The JSON document `name`; None where there is none, or none that can be read."""

    def headers(self, files: Iterable[str], problems: list[Problem]) -> dict[str, Header]:
        """The headers of those `files` that can be read, in their order."""

    def side_files(self, besides: frozenset[str], problems: list[Problem]) -> Mapping[str, Path]:
        """Everything by relative name but shards at the top and what is in `besides`. Tool folders (`.git`, `.cache`)
        are left alone."""


class Folder:
    """A folder of this machine. Shards that are the very files of `known` are not read again."""

    def __init__(self, root: Path, known: Mapping[str, Header] | None = None) -> None:
        self.root = root
        self._read = {header.stamp: header for header in known.values() if header.stamp} if known else {}

    def shards(self) -> list[str]:
        names = (path.name for path in self.root.iterdir())
        return sorted(name for name in names if name.endswith(SHARD_SUFFIX) and not name.startswith("."))

    def document(self, name: str, problems: list[Problem], known: Document | None = None) -> Document | None:
        path = self.root / name
        if not os.path.lexists(path):
            return None
        if not path.is_file() or not stays_inside(path, self.root):
            problems.append(Problem("unsafe-name", "not a regular file inside the folder", name))
            return None
        try:
            return read_document(path, known)
        except UnreadableCheckpoint as error:
            problems += error.problems
            return None

    def headers(self, files: Iterable[str], problems: list[Problem]) -> dict[str, Header]:
        headers: dict[str, Header] = {}
        for file in files:
            path = self.root / file
            if not path.exists():
                problems.append(Problem("shard-missing", "named in the index, not in the folder", file))
            elif not path.is_file() or not stays_inside(path, self.root):
                problems.append(Problem("unsafe-name", "not a regular file inside the folder", file))
            else:
                try:
                    before = self._read.get(stamp(path.stat()))
                    headers[file] = moved_header(before, path) if before else read_header(path)
                except UnreadableCheckpoint as error:
                    problems += error.problems
        return headers

    def side_files(self, besides: frozenset[str], problems: list[Problem]) -> dict[str, Path]:
        """A link out of the folder is a problem: its target, which may be any file of this user, would end up in what
        is written and published."""
        found: dict[str, Path] = {}
        for name, path in _visible_files(self.root, self.root):
            if path.is_dir():
                problems.append(Problem("unsafe-name", f"folders more than {DEEPEST} deep in one another", name))
            elif path.is_symlink() and not stays_inside(path, self.root):
                remedy = "Put the file itself in its place"
                problems.append(Problem("unsafe-name", "links to a file outside the folder", name, remedy=remedy))
            elif name not in besides:
                found[name] = path
        return found


def _visible_files(folder: Path, root: Path) -> Iterator[tuple[str, Path]]:
    """Relative posix name and path of all but root's shards, and of folders that are too deep to look into."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name.startswith(".") or path.is_symlink():
                continue
            if len(path.parts) - len(root.parts) > DEEPEST:
                yield path.relative_to(root).as_posix(), path
            else:
                yield from _visible_files(path, root)
        elif path.is_file() and not (folder == root and path.name.endswith(SHARD_SUFFIX)) and not is_part(path.name):
            yield path.relative_to(root).as_posix(), path
