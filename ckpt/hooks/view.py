"""A commit as a folder that the reader of checkpoints can open: small files from git, weights as further names of the
files in git-lfs's store, so that no gigabytes are copied."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from checkpoint import Problem
from checkpoint.linking import share
from ckpt.hooks.lfs import NotJudged
from ckpt.hooks.tree import Entry

ABANDONED = 24 * 3600
"""Seconds after which a view is what a killed process left behind."""


@contextmanager
def view(home: Path, contents: Iterable[tuple[Entry, bytes]], weights: Mapping[Entry, Path]) -> Iterator[Path]:
    """A folder in `home` with these files, as long as it is needed. Raises NotJudged where it cannot be written.

    No bytes of `weights` are copied where `home` is on their file system.
    """
    try:
        folder = _room(home)
    except OSError as error:
        raise _unwritable(error, home) from error
    try:
        root = folder / "view"
        root.mkdir()
        _fill(root, contents, weights)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise _unwritable(error, home) from error
    try:
        yield root
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _room(home: Path) -> Path:
    """A new folder in `home`; what others left there long ago goes."""
    home.mkdir(parents=True, exist_ok=True)
    for left in home.iterdir():
        if left.stat().st_mtime < time.time() - ABANDONED:
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(dir=home))


def _fill(root: Path, contents: Iterable[tuple[Entry, bytes]], weights: Mapping[Entry, Path]) -> None:
    """Write, share, and last of all link: nothing may be written through a link of the commit."""
    links = []
    for entry, content in contents:
        if entry.is_link:
            links.append((entry, content))
        else:
            _place(root, entry).write_bytes(content)
    for entry, path in weights.items():
        share(path, _place(root, entry))
    # all folders before the first link: in a tree that has a link and a folder of one name, one would lead elsewhere
    for place, content in [(_place(root, entry), content) for entry, content in links]:
        if b"\0" in content:
            raise OSError(errno.EINVAL, "a link to a name that no file can have", place.name)
        place.symlink_to(os.fsdecode(content))


def _place(root: Path, entry: Entry) -> Path:
    """Where the file goes, its folders made."""
    path = root / entry.path
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _unwritable(error: OSError, home: Path) -> NotJudged:
    found = f"no view of the commit can be put here: {error.strerror or error}"
    return NotJudged(Problem("view-unwritable", found, str(home)))
