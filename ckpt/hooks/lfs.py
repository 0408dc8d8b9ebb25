"""The files that git-lfs keeps on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from checkpoint import CkptError, Problem
from ckpt.hooks.git import Git, GitFailed
from ckpt.hooks.tree import Pointer


class NotJudged(CkptError):
    """What is to be pushed could not be judged; a gate that has not looked must not let pass."""

    headline = "not judged, so it may not pass"


@dataclass(frozen=True)
class Store:
    """Where git-lfs keeps files by their SHA-256: its own folder, then those that it may borrow from."""

    folder: Path
    others: tuple[Path, ...] = ()

    def find(self, pointer: Pointer) -> Path | None:
        """The file that `pointer` stands for; None where it is not here. Raises NotJudged where it was cut off."""
        name = Path(pointer.sha256[:2], pointer.sha256[2:4], pointer.sha256)
        for folder in (self.folder, *self.others):
            if (folder / name).is_file():
                size = (folder / name).stat().st_size
                if size != pointer.size:
                    found, remedy = f"{size:,} bytes in git-lfs's store", "Find what else is damaged: git lfs fsck"
                    raise NotJudged(
                        Problem("lfs-damaged", found, pointer.sha256, expected=f"{pointer.size:,}", remedy=remedy)
                    )
                return folder / name
        return None


def store_of(git: Git) -> Store:
    """The store of this repository, wherever `lfs.storage` and worktrees put it. Raises NotJudged without git-lfs."""
    try:
        said = os.fsdecode(git.run("lfs", "env"))
    except GitFailed as error:
        remedy = "Install it: https://git-lfs.com"
        raise NotJudged(
            Problem("lfs-missing", "keeps the weights, and is not installed", "git-lfs", remedy=remedy)
        ) from error
    facts = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    others = facts.get("LocalReferenceDirs", "").split(", ")
    return Store(Path(facts["LocalMediaDir"]), tuple(Path(folder) for folder in others if folder))


def fetch(git: Git, commit: str, remote: str | None) -> None:
    """Let git-lfs bring what `commit` points to from the remote. Raises GitFailed."""
    git.run("lfs", "fetch", *([remote] if remote else []), commit)


def not_here(git: Git, names: Iterable[str], commit: str) -> NotJudged:
    """The refusal that names the files which git-lfs has not here."""
    remedy = f"Fetch them: git lfs fetch {_remote(git)}{commit[:12]} (always: git config ckpt.fetch true)"
    absent = sorted(names)
    shown = f"{absent[0]} and {len(absent) - 1:,} more" if len(absent) > 1 else absent[0]
    return NotJudged(Problem("lfs-absent", "git-lfs has the file elsewhere, not on this machine", shown, remedy=remedy))


def _remote(git: Git) -> str:
    """The first remote by its name, and a blank; never its address, which may hold a password."""
    names = (git.line("remote") or "").splitlines()
    return f"{names[0]} " if names else ""
