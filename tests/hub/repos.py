"""Repositories: commits that never change, and the branches and tags that name them."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from time import gmtime, strftime

from .blobs import Blob, git_oid
from .wire import Refused, failure

REGULAR_LIMIT = 10 << 20  # a file above 10 MiB must be LFS on the Hub
GITATTRIBUTES = Path(__file__).with_name("gitattributes").read_bytes()  # of a new repository on the Hub


@dataclass(frozen=True)
class Entry:
    """A file at a commit; `lfs` is the sha256 that stands in its pointer, None for a file kept in git itself."""

    blob: Blob
    oid: str
    lfs: str | None

    @property
    def etag(self) -> str:
        return self.lfs or self.oid

    @property
    def size(self) -> int:
        return self.blob.size


@dataclass(frozen=True)
class Commit:
    """All files at one moment, and the commit before it."""

    oid: str
    parent: Commit | None
    files: Mapping[str, Entry]
    title: str
    message: str
    date: str

    def ancestry(self) -> Iterator[Commit]:
        """This commit and those before it, newest first."""
        commit: Commit | None = self
        while commit:
            yield commit
            commit = commit.parent

    def last_change(self, name: str) -> Commit:
        """The commit that gave the file its present bytes."""
        found = self
        for commit in self.ancestry():
            if name not in commit.files or commit.files[name].oid != self.files[name].oid:
                break
            found = commit
        return found


@dataclass
class Repo:
    """One repository. `objects` are the LFS objects uploaded to it, committed or not, by sha256."""

    id: str
    private: bool = False
    gated: bool = False
    branches: dict[str, Commit] = field(default_factory=dict)
    tags: dict[str, Commit] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    objects: dict[str, Blob] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def at(self, revision: str) -> Commit:
        """The commit that a branch, tag, `refs/...` name or sha (7 digits or more) stands for.

        Raises:
            Refused: There is none.
        """
        short = re.sub(r"^refs/(heads|tags)/", "", revision)
        for names in (self.branches, self.tags, self.commits):
            if short in names:
                return names[short]
        if re.fullmatch("[0-9a-f]{7,39}", revision):
            for oid, commit in self.commits.items():
                if oid.startswith(revision):
                    return commit
        raise Refused(failure(404, f"Invalid rev id: {revision}", "RevisionNotFound"))

    def commit(self, branch: str, files: Mapping[str, Entry], title: str, message: str = "") -> Commit:
        """A new commit of exactly these files on the branch, which is made if need be."""
        parent = self.branches.get(branch)
        content = [len(self.commits), parent.oid if parent else "", title, message]
        tree = sorted((name, entry.oid) for name, entry in files.items())
        oid = hashlib.sha1(json.dumps([self.id, content, tree]).encode()).hexdigest()
        commit = Commit(oid, parent, dict(files), title, message, strftime("%Y-%m-%dT%H:%M:%S.000Z", gmtime()))
        self.commits[oid] = self.branches[branch] = commit
        self.objects |= {entry.lfs: entry.blob for entry in files.values() if entry.lfs}
        return commit


def regular(blob: Blob) -> Entry:
    """A file kept in git itself."""
    return Entry(blob, blob.git_oid(), None)


def large(blob: Blob, sha256: str) -> Entry:
    """A file kept in LFS under this sha256, which is believed."""
    return Entry(blob, git_oid(pointer(sha256, blob.size)), sha256)


def pointer(sha256: str, size: int) -> bytes:
    """The file that git keeps in place of a large one."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def is_large(name: str, size: int, sample: bytes, attributes: bytes | None) -> bool:
    """Whether a file goes to LFS: by `.gitattributes`, or for its size, or as `sample`, its begin, is no text."""
    lines = [line.split() for line in (GITATTRIBUTES if attributes is None else attributes).decode().splitlines()]
    patterns = [words[0] for words in lines if "filter=lfs" in words[1:]]
    base = name.rpartition("/")[2]
    named = any(fnmatchcase(name if "/" in pattern else base, pattern) for pattern in patterns)
    return named or size > REGULAR_LIMIT or b"\0" in sample


def entries_of(folder: Path, oids: Mapping[str, str], hash_shards: bool) -> dict[str, Entry]:
    """The files of a folder as a commit would hold them; `.git` and `.cache` are left out.

    A large file's sha256 is the one in `oids`; else it is computed, or with `hash_shards` off made up from its name and
    size, which no one can tell without reading the file.
    """
    attributes = folder / ".gitattributes"
    rules = attributes.read_bytes() if attributes.is_file() else None
    entries: dict[str, Entry] = {}
    for path, name in _files(folder):
        blob = Blob.at(path)
        if not is_large(name, blob.size, blob.read(0, 512), rules):
            entries[name] = regular(Blob.of(blob.chunks()))
        elif name in oids or hash_shards:
            entries[name] = large(blob, oids.get(name) or blob.sha256())
        else:
            entries[name] = large(blob, hashlib.sha256(f"{name} {blob.size}".encode()).hexdigest())
    return entries


def _files(folder: Path) -> Iterable[tuple[Path, str]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith((".git/", ".cache/")):
            yield path, name
