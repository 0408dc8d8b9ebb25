"""Where the contents of a commit's files are: in git, in git-lfs's store, or not on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from checkpoint import Problem
from ckpt.hooks.git import Git
from ckpt.hooks.lfs import Store, store_of
from ckpt.hooks.target import Target
from ckpt.hooks.tree import MAX_PLAIN, MAX_POINTER, Entry, files_of, inside, pointers_in
from ckpt.hooks.view import view

ABOUT_IT = (".md", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp")
"""Endings of files that tell of a checkpoint and are no part of it."""


@dataclass(frozen=True)
class Contents:
    """`plain` files are in git, `weights` in the store of git-lfs, `absent` in neither."""

    git: Git
    plain: Sequence[Entry]
    weights: Mapping[Entry, Path]
    absent: Sequence[Entry]
    store: Store | None = None

    def view(self) -> AbstractContextManager[Path]:
        """The files in a folder, as long as it is needed. Raises NotJudged where it cannot be written."""
        home = self.store.folder.resolve().parent / "ckpt" if self.store else self.git.path("ckpt")
        blobs = self.git.blobs(entry.oid for entry in self.plain)
        return view(home, zip(self.plain, blobs, strict=True), self.weights)


def contents_of(git: Git, tree: str, entries: Sequence[Entry]) -> Contents:
    """Find the contents of `entries`, files of `tree`. Raises NotJudged where git-lfs cannot say, or keeps a part."""
    small = [entry for entry in entries if entry.size <= MAX_POINTER]
    pointers = pointers_in(git, tree, dict(zip(small, git.blobs(entry.oid for entry in small), strict=True)))
    plain = [entry for entry in entries if entry not in pointers]
    if not pointers:
        return Contents(git, plain, {}, ())
    store = store_of(git)
    places = {entry: store.find(pointer) for entry, pointer in pointers.items()}
    weights = {entry: place for entry, place in places.items() if place}
    return Contents(git, plain, weights, [entry for entry in pointers if entry not in weights], store)


def too_large(entries: Iterable[Entry]) -> Iterator[Problem]:
    """What the Hub would reject: large files that git itself holds."""
    for entry in entries:
        if entry.size > MAX_PLAIN:
            pattern = f"*{Path(entry.path).suffix}" if Path(entry.path).suffix else entry.path
            yield Problem(
                "plain-git",
                f"{entry.size:,} bytes, committed without git-lfs",
                entry.path,
                expected=f"at most {MAX_PLAIN:,}",
                remedy=f"Take it out of the commits, too: git lfs migrate import --include='{pattern}'",
            )


def already_there(git: Git, target: Target, folders: Sequence[str], entries: Iterable[Entry]) -> str | None:
    """A commit where the target goes that has the very same in `folders`, if one is known here."""
    mine = _made_of(entries)
    for commit in target.known:
        if git.line("cat-file", "-e", f"{commit}^{{tree}}") is not None and mine == _made_of(
            inside(files_of(git, f"{commit}^{{tree}}"), folders)
        ):
            return commit
    return None


def _made_of(entries: Iterable[Entry]) -> set[tuple[str, str, str]]:
    """Path, mode and object of each file that is part of a checkpoint."""
    return {(one.path, one.mode, one.oid) for one in entries if not one.path.lower().endswith(ABOUT_IT)}
