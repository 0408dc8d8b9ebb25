"""Where a folder came from, as far as it tells: a repository of the Hub, a commit, and hashes that the Hub stated.

Three ways of getting a checkpoint leave that beside it: the Hub cache (`models--o--n/snapshots/COMMIT`, files as links
to blobs that are named by their hash), `hf download --local-dir` (`.cache/huggingface/download/*.metadata`) and git.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from checkpoint.files import stays_inside
from checkpoint.folder import MANIFEST
from checkpoint.places import SCHEME, Root
from checkpoint.wholefile import read_whole

SMALL = 1024 * 1024
"""Bytes; a note has a few lines, and git's list of all branches and tags one for each."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SECOND = 1.0


@dataclass(frozen=True)
class Whence:
    """`place` is `hf://owner/name` or a folder's last component; `revision` a commit; `sha256` of files by name."""

    place: str
    revision: str | None
    sha256: Mapping[str, str]


def whence(root: Root, files: Iterable[str]) -> Whence:
    """What is known of `root` and of `files` in it, without reading any of them."""
    if not isinstance(root, Path):
        known = {name: digest for name in files if name in root.files and (digest := root.files[name].sha256)}
        return Whence(f"{SCHEME}{root.id}", root.commit, known)
    repo = snapshot_of(root)
    if repo:
        return Whence(repo, Path(os.path.abspath(root)).name, _blobs(root, files))
    names = list(files)
    downloads = {name: found for name in names if (found := _download(root, name))}
    commits = {commit for commit, _ in downloads.values()}
    revision = commits.pop() if len(commits) == 1 and len(downloads) == len(names) else _head(root)
    known = {name: etag for name, (_, etag) in downloads.items() if _SHA256.fullmatch(etag)}
    return Whence(folder_name(root), revision, known)


def folder_name(path: Path) -> str:
    """The last component of `path`, and nothing of where it lies."""
    return os.path.basename(os.path.abspath(path)) or "root"


def snapshot_of(root: Path) -> str | None:
    """`hf://owner/name` where `root` is a snapshot in a Hub cache."""
    path = Path(os.path.abspath(root))
    repo = path.parent.parent.name
    if not (_COMMIT.fullmatch(path.name) and path.parent.name == "snapshots" and repo.startswith("models--")):
        return None
    return SCHEME + repo.removeprefix("models--").replace("--", "/", 1)


def _blobs(root: Path, files: Iterable[str]) -> dict[str, str]:
    """Large files are links to blobs that are named by their SHA-256, others by git's hash, which is shorter."""
    found = {name: os.path.basename(os.path.realpath(root / name)) for name in files}
    return {name: blob for name, blob in found.items() if _SHA256.fullmatch(blob)}


def _download(root: Path, name: str) -> tuple[str, str] | None:
    """(commit, etag) of a file as huggingface_hub noted them when it downloaded it; None if it was written since."""
    note = root / ".cache" / "huggingface" / "download" / f"{name}.metadata"
    try:
        lines = _text(note, root).split()
        moment = float(lines[2])
        fresh = (root / name).stat().st_mtime <= moment + _SECOND
    except (OSError, ValueError, IndexError):
        return None
    return (lines[0], lines[1]) if fresh and _COMMIT.fullmatch(lines[0]) else None


def _head(root: Path) -> str | None:
    """The commit that a git clone is at; None where a run of ours has written into it since."""
    if (root / MANIFEST).exists():
        return None
    with suppress(OSError, ValueError):
        head = _text(root / ".git" / "HEAD", root).strip()
        reference = head.removeprefix("ref: ")
        if reference != head:
            head = _resolved(root / ".git", reference)
        return head if _COMMIT.fullmatch(head) else None
    return None


def _resolved(git: Path, reference: str) -> str:
    """The commit that a branch is at. Raises OSError or ValueError where that cannot be read off two files."""
    if not re.fullmatch(r"refs/heads/[\w][\w.\-/]*", reference) or ".." in reference:
        raise ValueError(reference)
    loose = git / reference
    if loose.is_file():
        return _text(loose, git.parent).strip()
    packed = re.search(
        rf"^([0-9a-f]{{40}}) {re.escape(reference)}$", _text(git / "packed-refs", git.parent), re.MULTILINE
    )
    return packed[1] if packed else ""


def _text(path: Path, root: Path) -> str:
    """What a note of a tool says. Raises OSError for what is no small file inside the folder, and ValueError."""
    if not stays_inside(path, root):
        raise OSError(errno.ELOOP, "links to a file outside the folder", str(path))
    return read_whole(path, SMALL).decode()
