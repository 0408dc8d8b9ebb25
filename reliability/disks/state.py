"""Folders taken down in every detail, to be compared."""

from __future__ import annotations

import os
import stat
from pathlib import Path

State = dict[str, tuple[object, ...]]


def state(folder: Path) -> State:
    """Everything below `folder` by relative name: kind and mode, time and inode of files, and bytes or link target."""
    found: State = {}
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            full = Path(path, name)
            known = full.lstat()
            mode = stat.filemode(known.st_mode)
            if full.is_symlink():
                entry: tuple[object, ...] = (mode, os.readlink(full))
            elif full.is_dir():
                entry = (mode,)
            else:
                entry = (mode, known.st_mtime_ns, known.st_ino, full.read_bytes())
            found[full.relative_to(folder).as_posix()] = entry
    return found


def contents(folder: Path) -> dict[str, object]:
    """Bytes of files, targets of links, None for folders, by relative name: what two runs must make alike."""
    return {name: entry[-1] if len(entry) > 1 else None for name, entry in state(folder).items()}


def beside(folder: Path) -> list[str]:
    """The names next to `folder`, hidden ones too."""
    return sorted(os.listdir(folder.parent))
