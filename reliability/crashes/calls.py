"""The system calls that change a disk, as numbers of x86-64, and where each says what it changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Argument = Literal["path", "handle", "folder+path"]

AT_FDCWD = -100
CREATING = 0o1000 | 0o100 | 0o1 | 0o2
"""O_TRUNC, O_CREAT, O_WRONLY, O_RDWR: an `openat` with none of them changes nothing."""

FICLONE = 0x40049409


@dataclass(frozen=True)
class Call:
    """`places` are the arguments that say where: (kind, number of the first one of it)."""

    name: str
    number: int
    places: tuple[tuple[Argument, int], ...]
    nbytes: int | None = None
    """The argument that says how many bytes are to be written."""


CALLS = (
    Call("write", 1, (("handle", 0),), 2),
    Call("ioctl", 16, (("handle", 0),)),
    Call("pwrite", 18, (("handle", 0),), 2),
    Call("writev", 20, (("handle", 0),)),
    Call("fsync", 74, (("handle", 0),)),
    Call("fdatasync", 75, (("handle", 0),)),
    Call("truncate", 76, (("path", 0),)),
    Call("ftruncate", 77, (("handle", 0),)),
    Call("rename", 82, (("path", 0), ("path", 1))),
    Call("mkdir", 83, (("path", 0),)),
    Call("rmdir", 84, (("path", 0),)),
    Call("link", 86, (("path", 0), ("path", 1))),
    Call("unlink", 87, (("path", 0),)),
    Call("symlink", 88, (("path", 1),)),
    Call("chmod", 90, (("path", 0),)),
    Call("fchmod", 91, (("handle", 0),)),
    Call("chown", 92, (("path", 0),)),
    Call("openat", 257, (("folder+path", 0),)),
    Call("mkdirat", 258, (("folder+path", 0),)),
    Call("unlinkat", 263, (("folder+path", 0),)),
    Call("renameat", 264, (("folder+path", 0), ("folder+path", 2))),
    Call("linkat", 265, (("folder+path", 0), ("folder+path", 2))),
    Call("symlinkat", 266, (("folder+path", 1),)),
    Call("fchmodat", 268, (("folder+path", 0),)),
    Call("sync_file_range", 277, (("handle", 0),)),
    Call("utimensat", 280, (("folder+path", 0),)),
    Call("renameat2", 316, (("folder+path", 0), ("folder+path", 2))),
    Call("copy_file_range", 326, (("handle", 2),), 4),
)
"""What Python and this project use; `test_crashes` sees that a run changes nothing by another call."""

BY_NUMBER = {call.number: call for call in CALLS}
BY_NAME = {call.name: call for call in CALLS}
FLOCK = 73
