"""A folder is built beside its target and takes its place in one step, or leaves no trace.

A reader of the target sees the old checkpoint or the new one. What a killed run leaves behind is a hidden sibling that
the next run recognises, because nobody holds its lock, and removes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checkpoint.errors import Problem, Refused
from checkpoint.folder import CONFIG, INDEX

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_CANNOT_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.EBUSY, errno.EXDEV, errno.EOPNOTSUPP}


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """A new hidden sibling of `target`, locked by this process, and removed at the end unless it was published.

    Raises Refused where another run is writing the same target.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(target)
    folder = target.parent / f".{target.name}.ckpt-{os.getpid()}"
    folder.mkdir()
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        os.close(lock)
        if folder.exists():
            shutil.rmtree(folder)


def publish_new(staged: Path, target: Path) -> None:
    """`staged` becomes `target`, which must not exist or be an empty folder."""
    _sync_tree(staged)
    os.rename(staged, target)
    sync_folder(target.parent)


def publish_over(staged: Path, target: Path) -> None:
    """`staged` and `target` change places in one step; where the file system cannot, files are replaced one by one."""
    _sync_tree(staged)
    shutil.copymode(target, staged)
    try:
        _exchange(staged, target)
    except OSError as error:
        if error.errno not in _CANNOT_EXCHANGE:
            raise
        replace_files(staged, target)
    sync_folder(target.parent)


def replace_files(staged: Path, target: Path) -> None:
    """Move each staged file over its counterpart, index and config last, then remove what the new set lacks.

    A failure on the way puts every old file back.
    """
    olds = staged / ".ckpt-replaced"
    olds.mkdir()
    last = (INDEX, CONFIG)
    names = [path.name for path in staged.iterdir() if path.is_file() and path.name not in last]
    names += [name for name in last if (staged / name).exists()]
    unwanted = [p.name for p in target.iterdir() if p.is_file() and not (staged / p.name).exists()]
    moved: list[str] = []
    try:
        for name in names:
            moved.append(name)
            if (target / name).exists():
                os.link(target / name, olds / name)
            os.replace(staged / name, target / name)
        for name in unwanted:
            moved.append(name)
            os.rename(target / name, olds / name)
    except BaseException:
        _put_back(moved, olds, target)
        raise
    sync_folder(target)


def refuse_occupied(target: Path) -> None:
    """Raise Refused unless `target` is free to be created."""
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        remedy = "Choose another --out, or remove it"
        raise Refused(Problem("target-exists", "already exists", str(target), remedy=remedy))


def sync_folder(folder: Path) -> None:
    """Flush the names in `folder` to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _put_back(moved: list[str], olds: Path, target: Path) -> None:
    for name in moved:
        if (olds / name).exists():
            os.replace(olds / name, target / name)
        else:
            (target / name).unlink(missing_ok=True)


def _sync_tree(folder: Path) -> None:
    for path, _, _ in os.walk(folder):
        sync_folder(Path(path))


def _exchange(one: Path, other: Path) -> None:
    """`renameat2(2)` with RENAME_EXCHANGE, which Python does not offer. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, "no renameat2")
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(other))


def _clear_leftovers(target: Path) -> None:
    """Remove staging folders of runs that died; refuse while one of them lives."""
    for folder in target.parent.glob(f".{_escape_glob(target.name)}.ckpt-*"):
        if folder.is_symlink() or not folder.is_dir():
            continue
        if _is_locked(folder):
            found = f"another run is writing it (staging folder {folder.name})"
            raise Refused(Problem("target-busy", found, str(target), remedy="Wait for it to end"))
        shutil.rmtree(folder)


def _is_locked(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _escape_glob(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
