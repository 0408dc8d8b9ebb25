"""A folder is built beside its target and takes its place in one step, or leaves no trace.

A reader of the target sees the old checkpoint or the new one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from checkpoint.errors import CkptError, Problem, Refused
from checkpoint.folder import CONFIG, INDEX
from checkpoint.interrupts import undisturbed
from checkpoint.journal import Journal
from checkpoint.linking import copy_identity, keep
from checkpoint.locking import locked
from checkpoint.recovery import (
    Undo,
    clear_leftovers,
    discard,
    discard_undone,
    journal_path,
    spool_path,
    staging_path,
    sync_tree,
)
from checkpoint.wholefile import sync_folder

GO_ON = "the same command goes on from there, another one removes it"

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_CANNOT_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.EBUSY, errno.EXDEV, errno.EOPNOTSUPP}


@contextmanager
def staging_folder(target: Path, plan: str) -> Iterator[tuple[Path, Journal]]:
    """A hidden sibling of `target`, for the only run that writes it; at the end all that stands beside is removed.

    It is new, or holds the shards that its journal says an earlier run of the same `plan` (a fingerprint) finished.
    Where a run is interrupted, or the Hub fails, they are kept for the next one. Raises Refused where another run is
    writing the same target.
    """
    missing = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            sync_folder(folder.parent)
        with locked(target):
            journal = Journal(journal_path(target), staging_path(target), plan)
            clear_leftovers(target, journal.finished)
            try:
                # closed to others until it has the mode it shall have: the target may be closed, or a folder in it
                staging_path(target).mkdir(0o700, exist_ok=bool(journal.finished))
                journal.start()
                yield staging_path(target), journal
            except BaseException as error:
                with undisturbed():
                    if _may_go_on(error) and (journal.is_kept or spool_path(target).exists()):
                        error.add_note(f"what was done is kept in {staging_path(target)}: {GO_ON}")
                        discard_undone(target)
                    else:
                        discard(target)
                raise
            with undisturbed():  # the target stands: it is too late to stop anything
                for _ in range(2):
                    with suppress(KeyboardInterrupt):
                        discard(target)
    except BaseException:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        raise


def _may_go_on(error: BaseException) -> bool:
    """Is it likely that the same command comes to its end later?"""
    if isinstance(error, CkptError):
        return all(problem.code.startswith("hub-") for problem in error.problems)
    return isinstance(error, KeyboardInterrupt)


def publish_new(staged: Path, target: Path) -> None:
    """`staged` becomes `target`, which must not exist or be an empty folder. A failure leaves `target` as it was."""
    existed = target.is_dir()
    if existed:
        copy_identity(target, staged)
    else:
        staged.chmod(_usual_mode(staged))
    sync_tree(staged)
    inode = staged.stat().st_ino
    try:
        os.rename(staged, target)
        sync_folder(target.parent)
    except BaseException:
        with undisturbed():
            if _is(target, inode):
                os.rename(target, staged)
                if existed:
                    target.mkdir()
                    copy_identity(staged, target)
        raise


def publish_over(staged: Path, target: Path) -> None:
    """`staged` and `target` change places in one step; where the file system cannot, files are replaced one by one.

    A failure leaves `target` as it was.
    """
    copy_identity(target, staged)
    os.utime(staged)
    sync_tree(staged)
    inode = staged.stat().st_ino
    try:
        if _try_exchange(staged, target):
            sync_folder(target.parent)
        else:
            replace_files(staged, target)
    except BaseException:
        with undisturbed():
            if _is(target, inode):
                _exchange(staged, target)
        raise


def replace_files(staged: Path, target: Path) -> None:
    """Move each staged file over its counterpart, index and config last, then remove what the new set lacks.

    A failure on the way puts every old file back, and so does the next run after a kill. Raises Refused where a folder
    of the new set is a link in the old one: files would go to where it leads.
    """
    elsewhere = [name for name in _folders(staged) if (target / name).is_symlink()]
    if elsewhere:
        raise Refused(Problem("unsafe-name", "links to a folder elsewhere", str(target), name) for name in elsewhere)
    new, old = dict(_files(staged)), dict(_files(target))
    changed = [name for name in new if not _is_same(new[name], old.get(name))]
    unwanted = [name for name in old if name not in new]
    undo = Undo(
        target,
        replaced=tuple(name for name in (*changed, *unwanted) if name in old),
        added=tuple(name for name in changed if name not in old),
        folders=tuple(name for name in _folders(staged) if not (target / name).exists()),
    )
    undo.folder.mkdir(0o700)
    for name in undo.replaced:
        undo.kept(name).parent.mkdir(parents=True, exist_ok=True)
        keep(target / name, undo.kept(name))
    try:
        undo.begin()
        for name in undo.folders:
            (target / name).mkdir()
            copy_identity(staged / name, target / name)
        for name in sorted(changed, key=(INDEX, CONFIG).__contains__):
            os.replace(staged / name, target / name)
        for name in unwanted:
            (target / name).unlink()
        sync_tree(target)
        journal_path(target).unlink(missing_ok=True)  # what it says is finished was moved: no run can go on from it
        undo.end()
    except BaseException:
        with undisturbed():
            undo.run()
            undo.end()
        raise


def refuse_occupied(target: Path) -> None:
    """Raise Refused unless `target` is free to be created."""
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        remedy = "Choose another --out, or remove it"
        raise Refused(Problem("target-exists", "already exists", str(target), remedy=remedy))


def _usual_mode(folder: Path) -> int:
    """The mode that a new folder in `folder` has: by umask, and by what is handed down."""
    probe = folder / ".ckpt-mode"
    probe.mkdir()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.rmdir()
    return mode


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Everything under `folder` that is no folder, links not followed, by relative name."""
    for path, folders, files in os.walk(folder):
        for name in (*files, *(name for name in folders if os.path.islink(os.path.join(path, name)))):
            yield os.path.relpath(os.path.join(path, name), folder), Path(path, name)


def _folders(folder: Path) -> Iterator[str]:
    """Every folder under `folder`, outer ones first, by relative name."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            if not os.path.islink(os.path.join(path, name)):
                yield os.path.relpath(os.path.join(path, name), folder)


def _is_same(one: Path, other: Path | None) -> bool:
    """Are these two names of one file?"""
    if other is None:
        return False
    stat, other_stat = one.lstat(), other.lstat()
    return (stat.st_dev, stat.st_ino) == (other_stat.st_dev, other_stat.st_ino)


def _is(target: Path, inode: int) -> bool:
    """Is `target` the folder with this inode, that is: has the step been done? The only proof after an interrupt."""
    try:
        return target.stat().st_ino == inode
    except FileNotFoundError:
        return False


def _try_exchange(staged: Path, target: Path) -> bool:
    try:
        _exchange(staged, target)
    except OSError as error:
        if error.errno not in _CANNOT_EXCHANGE:
            raise
        return False
    return True


def _exchange(one: Path, other: Path) -> None:
    """`renameat2(2)` with RENAME_EXCHANGE, which Python does not offer. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, "no renameat2")
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(other))
