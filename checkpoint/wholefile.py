"""A file that is there whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from checkpoint.errors import Problem, Refused, WriteFailed, naming
from checkpoint.interrupts import undisturbed
from checkpoint.locking import held, is_at, opened

PART = ".ckpt-part"
"""How the name of a file ends that is being written, and that a kill leaves: nothing is lost with it."""

_CANNOT_SYNC = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def read_whole(path: Path, most: int, *, linked: bool = True) -> bytes:
    """All bytes of the regular file `path`, at most `most`; through a link only where it may be `linked`.

    Raises OSError, also where it is larger or none: a pipe would have us wait for a writer, a device for ever.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    handle = os.open(path, flags if linked else flags | os.O_NOFOLLOW)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    with os.fdopen(handle, "rb") as file:
        content = file.read(min(status.st_size, most) + 1)
        if len(content) > status.st_size:  # it grew, or is of those that have no size, as in /proc
            content += file.read(max(most + 1 - len(content), 0))
    if len(content) > most:
        raise OSError(errno.EFBIG, f"over {most:,} bytes", str(path))
    return content


def write_whole(content: bytes, path: Path, code: str) -> None:
    """Put `content` in place of `path` in one step, with the mode that any new file has; it is on the disk then.

    Raises WriteFailed, its problem called `code`; Refused where another run is writing the same file.
    """
    try:
        part, handle = path.with_name(f".{path.name}{PART}"), -1
        try:
            handle = _begun(part)
            with os.fdopen(handle, "wb", closefd=False) as file:
                file.write(content)
            os.fsync(handle)
            with undisturbed():  # what stands was not interrupted
                os.replace(part, path)
                sync_folder(path.parent)
        except BaseException:
            if handle >= 0 and is_at(part, handle):
                with suppress(OSError):
                    part.unlink()
            raise
        finally:
            if handle >= 0:
                os.close(handle)
    except OSError as error:
        raise WriteFailed(Problem(code, error.strerror or str(error), str(path))) from error


def is_part(name: str) -> bool:
    """Is it the name of a file that a killed run did not come to put in its place?"""
    return name.startswith(".") and name.endswith(PART)


def sync_folder(folder: Path) -> None:
    """Flush the names in `folder` to the disk, where its file system knows such a thing."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with naming(folder):
            os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(handle)


def _begun(part: Path) -> int:
    """The new file `part`, open and locked: what a killed run left under this name gives way, what lives does not."""
    while True:
        handle, made = opened(part, 0o666)
        if held(handle) is False:
            os.close(handle)
            written = part.with_name(part.name[1 : -len(PART)])
            raise Refused(
                Problem("target-busy", "another run is writing it", str(written), remedy="Wait for it to end")
            )
        if is_at(part, handle):
            if made:
                return handle
            part.unlink()
        os.close(handle)
