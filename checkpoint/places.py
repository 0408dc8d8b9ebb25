"""Where a checkpoint can be: a folder, or a repository of the Hub, pinned to a commit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from checkpoint.errors import Problem, UnreadableCheckpoint

SCHEME = "hf://"

_ADDRESS = re.compile(
    r"(?:models/)?(?P<repo>[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@(?P<revision>refs/[\w.-]+/[\w.-]+|[^\s/@:]+))?",
    re.ASCII,
)


@dataclass(frozen=True)
class Address:
    """`hf://owner/name[@revision]`: a model repository of the Hub, at a branch, a tag or a commit (None: main)."""

    repo: str
    revision: str | None = None

    @staticmethod
    def parse(text: str) -> Address:
        """Raises UnreadableCheckpoint for what is no such address. A token in it is not shown again."""
        match = _ADDRESS.fullmatch(text.removeprefix(SCHEME)) if text.startswith(SCHEME) else None
        if match is None or not text.isprintable():
            found, expected = "is no address of a model repository", f"{SCHEME}owner/name[@revision]"
            shown = re.sub(r"[^/]*@(?=[^/]*/)", "***@", text)
            remedy = "A token is taken from HF_TOKEN or `hf auth login`, never from an address"
            raise UnreadableCheckpoint(Problem("address-invalid", found, shown, None, expected, remedy))
        return Address(match["repo"], match["revision"])

    def __str__(self) -> str:
        return f"{SCHEME}{self.repo}" + (f"@{self.revision}" if self.revision else "")


Place = Path | Address


def place_of(text: str | Place) -> Place:
    """What `text` names: an address if it begins as one, else a path. Raises UnreadableCheckpoint."""
    if isinstance(text, str):
        return Address.parse(text) if text.startswith(SCHEME) else Path(text)
    return text


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository at a commit. `sha256` is known of what the Hub stores as large files, `blob` (git's own
    hash, of the content or of the pointer to it) of all."""

    repo: str
    commit: str
    name: str
    size: int
    sha256: str | None = None
    blob: str | None = None

    def __str__(self) -> str:
        return f"{SCHEME}{self.repo}@{self.commit}/{self.name}"


File = Path | RemoteFile


@dataclass(frozen=True)
class Repo:
    """A model repository at a commit, `asked` for by a revision. `files` are all of it, `cached` those of them that
    lie in the Hub cache of this machine."""

    id: str
    commit: str
    asked: str | None = None
    files: Mapping[str, RemoteFile] = field(default_factory=dict, compare=False, repr=False)
    cached: Mapping[str, Path] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{SCHEME}{self.id}@{self.commit}"

    def __truediv__(self, name: str) -> File:
        """The file `name`: on this machine where it is cached. Raises KeyError where there is none."""
        return self.cached.get(name) or self.files[name]


Root = Path | Repo
