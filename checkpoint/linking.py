"""Giving a file a second name or a second copy, the cheapest way that the file system offers."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path

from checkpoint.files import CHUNK

_FICLONE = 0x40049409
"""`ioctl_ficlone(2)`: share the blocks of another file, copy on write."""

_CANNOT_SHARE = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES, errno.ENOSYS}
_CANNOT_MOVE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}


def share(source: Path, target: Path) -> str:
    """Make `target`, which must not exist, hold what `source` holds: "reflink", "hard link" or "copy".

    A hard link is one file under two names: only for files that nobody writes in place afterwards.
    """
    source = source.resolve()
    if _reflink(source, target):
        return "reflink"
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_SHARE:
            raise
        copy(source, target)
        return "copy"
    return "hard link"


def copy(source: Path, target: Path) -> None:
    """Copy the bytes of `source` into the new file `target`, readable as umask allows, and flush them."""
    with source.open("rb") as reader, target.open("xb") as writer:
        size = os.fstat(reader.fileno()).st_size
        copy_range(reader.fileno(), 0, writer.fileno(), 0, size)
        os.fsync(writer.fileno())


def copy_range(source: int, offset: int, target: int, position: int, nbytes: int) -> None:
    """Move `nbytes` between open files without passing them through this process where the kernel can."""
    while nbytes:
        try:
            count = os.copy_file_range(source, target, nbytes, offset, position)
        except OSError as error:
            if error.errno not in _CANNOT_MOVE:
                raise
            count = os.pwrite(target, os.pread(source, min(nbytes, CHUNK), offset), position)
        if count == 0:
            raise OSError(errno.EIO, f"the source ends {nbytes:,} bytes early")
        offset, position, nbytes = offset + count, position + count, nbytes - count


def clone_tree(source: Path, target: Path) -> None:
    """`target` becomes a second set of names for all that is under `source`; symbolic links stay as written."""
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
    elif source.is_dir():
        target.mkdir()
        for child in source.iterdir():
            clone_tree(child, target / child.name)
        shutil.copystat(source, target)
    elif source.is_file():
        share(source, target)


def can_share(source: Path, folder: Path) -> bool:
    """Are `source` and `folder` on one file system, so that no bytes need to move?"""
    return source.resolve().stat().st_dev == folder.stat().st_dev


def _reflink(source: Path, target: Path) -> bool:
    with source.open("rb") as reader, target.open("xb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            cloned = False
        else:
            cloned = True
            os.fchmod(writer.fileno(), stat.S_IMODE(os.fstat(reader.fileno()).st_mode) | stat.S_IRUSR | stat.S_IWUSR)
    if not cloned:
        target.unlink()
    return cloned
