"""Giving a file a second name or a second copy, the cheapest way that the file system offers."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from checkpoint.errors import Problem, UnreadableCheckpoint, naming
from checkpoint.files import CHUNK

_FICLONE = 0x40049409
"""`ioctl_ficlone(2)`: share the blocks of another file, copy on write."""

_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES, errno.ENOSYS}
_CANNOT_MOVE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM, errno.EIO}
"""EIO too: which of the two files fails is known only from reading one and writing the other."""


def share(source: Path, target: Path) -> None:
    """Make `target`, which must not exist, hold what the file `source` holds: by reflink, else hard link, else copy.

    A hard link is one file under two names: only for files that nobody writes in place afterwards.
    """
    source = source.resolve()
    if not _reflink(source, target) and not _hard_link(source, target):
        copy(source, target)


def keep(source: Path, target: Path) -> None:
    """Give what is under `source` (a file, a symbolic link, a pipe) the further name `target`: the thing itself where
    the file system can, so that inode, time, mode and attributes stay, else a copy."""
    if _hard_link(source, target):
        return
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
    elif source.is_file():
        copy(source, target)
        shutil.copystat(source, target)


def copy(source: Path, target: Path) -> None:
    """Copy the bytes of `source` into the new file `target`, readable as umask allows, and flush them.

    Raises UnreadableCheckpoint where the source fails, OSError where the target does.
    """
    with naming(target), source.open("rb") as reader, target.open("xb") as writer:
        size = os.fstat(reader.fileno()).st_size
        copy_range(source, reader.fileno(), 0, writer.fileno(), 0, size)
        os.fsync(writer.fileno())


def copy_range(path: Path, source: int, offset: int, target: int, position: int, nbytes: int) -> None:
    """Move `nbytes` from `path`, open as `source`, to `target` without passing them through this process where the
    kernel can.

    Raises UnreadableCheckpoint where the source fails or ends early, OSError where the target does.
    """
    while nbytes:
        try:
            count = os.copy_file_range(source, target, nbytes, offset, position)
        except OSError as error:
            if error.errno not in _CANNOT_MOVE:
                raise
            count = 0
        if count == 0:  # some file systems say 0 instead of an error
            count = os.pwrite(target, _piece(path, source, min(nbytes, CHUNK), offset), position)
        if count == 0:
            found = f"ends at byte {offset:,}"
            raise UnreadableCheckpoint(Problem("truncated", found, str(path), expected=f"{offset + nbytes:,}"))
        offset, position, nbytes = offset + count, position + count, nbytes - count


def unreadable(path: Path, error: OSError) -> UnreadableCheckpoint:
    """The error for a source that fails."""
    return UnreadableCheckpoint(Problem("file-unreadable", error.strerror or str(error), str(path)))


def _piece(path: Path, handle: int, nbytes: int, offset: int) -> bytes:
    try:
        return os.pread(handle, nbytes, offset)
    except OSError as error:
        raise unreadable(path, error) from error


def write_all(handle: int, buffer: bytes | memoryview, position: int) -> None:
    """Write `buffer` at `position`, in as many calls as the kernel wants."""
    view = memoryview(buffer).cast("B")
    done = 0
    while done < len(view):
        done += os.pwrite(handle, view[done:], position + done)


def can_share(source: Path, folder: Path) -> bool:
    """Are `source` and `folder` on one file system, so that no bytes need to move?"""
    return source.resolve().stat().st_dev == folder.stat().st_dev


def copy_identity(source: Path, target: Path) -> None:
    """Give the folder `target` the mode, times, attributes and, where this process may, the owner of `source`."""
    owner = source.stat()
    with suppress(PermissionError):
        os.chown(target, owner.st_uid, owner.st_gid)
    shutil.copystat(source, target)


def _hard_link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        return False
    return True


def _reflink(source: Path, target: Path) -> bool:
    with source.open("rb") as reader, target.open("xb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            cloned = False
        else:
            cloned = True
            os.fchmod(writer.fileno(), stat.S_IMODE(os.fstat(reader.fileno()).st_mode) | stat.S_IRUSR | stat.S_IWUSR)
            os.fsync(writer.fileno())
    if not cloned:
        target.unlink()
    return cloned
