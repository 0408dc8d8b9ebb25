"""A repository of the Hub as a place that a checkpoint can lie in: headers by range requests, documents downloaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from checkpoint.document import MAX_DOCUMENT, Document, read_document
from checkpoint.errors import Problem, UnreadableCheckpoint
from checkpoint.header import Header, header_length, parse_header, read_header
from checkpoint.places import RemoteFile, Repo
from checkpoint.remote.downloading import downloaded
from checkpoint.remote.ranges import Ranges
from checkpoint.shelf import SHARD_SUFFIX
from checkpoint.side_files import RemoteSideFiles

AT_ONCE = 8
"""Headers that are asked for side by side."""

GUESS = 16 * 1024
"""Bytes that are read of a shard at first; what of its header lies beyond takes a second request."""


class Repository:
    """A repository at a commit."""

    def __init__(self, repo: Repo) -> None:
        self.root = repo
        self._ranges = Ranges()

    def shards(self) -> list[str]:
        return sorted(name for name in self.root.files if _is_shard(name) and not name.startswith("."))

    def document(self, name: str, problems: list[Problem], known: Document | None = None) -> Document | None:
        if name not in self.root.files:
            return None
        try:
            file = self.root / name
            if self.root.files[name].size > MAX_DOCUMENT:
                raise UnreadableCheckpoint(Problem("json-invalid", f"over {MAX_DOCUMENT:,} bytes", name))
            return read_document(downloaded(file) if isinstance(file, RemoteFile) else file, known)
        except UnreadableCheckpoint as error:
            problems += error.problems
            return None

    def headers(self, files: Iterable[str], problems: list[Problem]) -> dict[str, Header]:
        names = list(files)
        with ThreadPoolExecutor(AT_ONCE, "ckpt-headers") as pool:
            found = list(zip(names, pool.map(self._header, names), strict=True))
        for _, header in found:
            if isinstance(header, UnreadableCheckpoint):
                problems += header.problems
        return {name: header for name, header in found if isinstance(header, Header)}

    def side_files(self, besides: frozenset[str], problems: list[Problem]) -> Mapping[str, Path]:
        return RemoteSideFiles(
            {
                name: file
                for name, file in sorted(self.root.files.items())
                if name not in besides and not _is_shard(name) and not _in_tool_folder(name)
            }
        )

    def _header(self, name: str) -> Header | UnreadableCheckpoint:
        """The header of a shard, or what is wrong with it."""
        try:
            if name not in self.root.files:
                return UnreadableCheckpoint(Problem("shard-missing", "named in the index, not in the repository", name))
            file = self.root / name
            return read_header(file) if isinstance(file, Path) else self._remote_header(file)
        except UnreadableCheckpoint as error:
            return error

    def _remote_header(self, file: RemoteFile) -> Header:
        raw = bytearray(min(GUESS, file.size))
        self._ranges.read_into(file, 0, memoryview(raw))
        length = header_length(file.name, bytes(raw[:8]), file.size, bytes(raw[8:40]))
        if (missing := 8 + length - len(raw)) > 0:
            rest = bytearray(missing)
            self._ranges.read_into(file, len(raw), memoryview(rest))
            raw += rest
        return parse_header(bytes(raw[8 : 8 + length]), file, file.size)


def _is_shard(name: str) -> bool:
    return "/" not in name and name.endswith(SHARD_SUFFIX)


def _in_tool_folder(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/")[:-1])
