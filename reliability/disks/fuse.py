"""A file system of our own in a few hundred lines: another view of a folder that fails, lies or lacks things.

It speaks the kernel's FUSE protocol (linux/fuse.h, version 7.31) on /dev/fuse by itself, so that nothing needs to be
installed; for root on Linux. `Behaviour` is what a faulty one overrides.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = 1
DIRECT_IO = 1
EXCHANGE = 2

HEADER = struct.Struct("<IIQQIIII")
ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
ENTRY = struct.Struct("<QQQQII")
SETATTR = struct.Struct("<IIQQQQQQIIIIIIII")
SIZE, MTIME, MTIME_NOW, MODE, UID, GID = 8, 32, 256, 1, 2, 4


class Behaviour:
    """A sound file system. `name` is a path relative to the folder, or the name that a call is about."""

    def find(self, folder: Path, name: str) -> str:
        """The entry of `folder` that `name` stands for."""
        return name

    def read(self, name: str, offset: int, data: bytes) -> bytes:
        """What a read of `data` at `offset` gives. Raises OSError."""
        return data

    def size(self, name: str, size: int) -> int:
        """What is told of the size of a file."""
        return size

    def change(self, operation: str, name: str) -> None:
        """Before create, write, fsync, link, symlink, rename, exchange, mkdir and unlink. Raises OSError."""


class Server:
    """Answers requests about `folder`, one after another."""

    def __init__(self, folder: Path, behaviour: Behaviour) -> None:
        self._folder = folder
        self._behaviour = behaviour
        self._paths: dict[int, str] = {ROOT: ""}
        self._ids: dict[str, int] = {"": ROOT}
        self._last = ROOT
        self._answers: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup, 3: self._getattr, 4: self._setattr, 5: self._readlink, 6: self._symlink, 9: self._mkdir,
            10: self._unlink, 11: self._rmdir, 12: self._rename, 13: self._link, 14: self._open, 15: self._read,
            16: self._write, 17: self._statfs, 18: self._release, 20: self._fsync, 25: self._nothing, 26: self._init,
            27: self._opendir, 28: self._readdir, 29: self._nothing, 30: self._nothing, 35: self._create,
            45: self._rename2,
        }  # fmt: skip

    def serve(self, device: int) -> None:
        """Until the file system is unmounted."""
        while True:
            try:
                request = os.read(device, (1 << 20) + 4096)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return
            _, opcode, unique, node = HEADER.unpack_from(request)[:4]
            if opcode in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET want no answer
                continue
            code, body = self._answer(opcode, node, request[HEADER.size :])
            try:
                os.write(device, struct.pack("<IiQ", 16 + len(body), -code, unique) + body)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise

    def _answer(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        try:
            return 0, self._answers[opcode](node, body)
        except KeyError:
            return errno.ENOSYS, b""
        except OSError as error:
            return error.errno or errno.EIO, b""

    def _real(self, name: str) -> Path:
        return self._folder / name

    def _child(self, node: int, raw: bytes) -> str:
        folder = self._paths[node]
        name = os.fsdecode(raw.split(b"\0", 1)[0])
        return os.path.join(folder, self._behaviour.find(self._real(folder), name))

    def _entry(self, name: str) -> bytes:
        attributes = self._attributes(name)
        if name not in self._ids:
            self._last += 1
            self._ids[name], self._paths[self._last] = self._last, name
        return ENTRY.pack(self._ids[name], 0, 0, 0, 0, 0) + attributes

    def _attributes(self, name: str) -> bytes:
        known = self._real(name).lstat()
        size = self._behaviour.size(name, known.st_size) if stat.S_ISREG(known.st_mode) else known.st_size
        times = (known.st_atime_ns, known.st_mtime_ns, known.st_ctime_ns)
        return ATTR.pack(
            known.st_ino, size, known.st_blocks, *(time // 10**9 for time in times), *(time % 10**9 for time in times),
            known.st_mode, known.st_nlink, known.st_uid, known.st_gid, known.st_rdev, 4096, 0,
        )  # fmt: skip

    def _init(self, node: int, body: bytes) -> bytes:
        readahead = struct.unpack_from("<III", body)[2]
        return struct.pack("<IIIIHHIIHH8I", 7, 31, readahead, 0, 12, 9, 1 << 17, 1, 0, 0, *[0] * 8)

    def _nothing(self, node: int, body: bytes) -> bytes:
        return b""

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._child(node, body))

    def _getattr(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(self._paths[node])

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, _, _, size, _, _, mtime, _, _, mtime_ns, _, mode, _, uid, gid, _ = SETATTR.unpack_from(body)
        path = self._real(self._paths[node])
        if valid & MODE:
            path.chmod(stat.S_IMODE(mode))
        if valid & (UID | GID):
            os.chown(path, uid if valid & UID else -1, gid if valid & GID else -1)
        if valid & SIZE:
            self._behaviour.change("write", self._paths[node])
            os.truncate(path, size)
        if valid & MTIME and not valid & MTIME_NOW:
            os.utime(path, ns=(path.stat().st_atime_ns, mtime * 10**9 + mtime_ns))
        return self._getattr(node, body)

    def _readlink(self, node: int, body: bytes) -> bytes:
        return os.fsencode(os.readlink(self._real(self._paths[node])))

    def _symlink(self, node: int, body: bytes) -> bytes:
        name = self._child(node, body)
        self._behaviour.change("symlink", name)
        self._real(name).symlink_to(os.fsdecode(body.split(b"\0")[1]))
        return self._entry(name)

    def _mkdir(self, node: int, body: bytes) -> bytes:
        mode, umask = struct.unpack_from("<II", body)
        name = self._child(node, body[8:])
        self._behaviour.change("mkdir", name)
        self._real(name).mkdir()
        self._real(name).chmod(mode & ~umask & 0o7777)
        return self._entry(name)

    def _unlink(self, node: int, body: bytes) -> bytes:
        name = self._child(node, body)
        self._behaviour.change("unlink", name)
        self._real(name).unlink()
        self._paths.pop(self._ids.pop(name, 0), None)
        return b""

    def _rmdir(self, node: int, body: bytes) -> bytes:
        name = self._child(node, body)
        self._real(name).rmdir()
        self._paths.pop(self._ids.pop(name, 0), None)
        return b""

    def _link(self, node: int, body: bytes) -> bytes:
        (old,) = struct.unpack_from("<Q", body)
        name = self._child(node, body[8:])
        self._behaviour.change("link", name)
        os.link(self._real(self._paths[old]), self._real(name), follow_symlinks=False)
        return self._entry(name)

    def _rename(self, node: int, body: bytes) -> bytes:
        return self._moved(node, struct.unpack_from("<Q", body)[0], body[8:], 0)

    def _rename2(self, node: int, body: bytes) -> bytes:
        target, flags = struct.unpack_from("<QI", body)
        return self._moved(node, target, body[16:], flags)

    def _moved(self, node: int, target: int, names: bytes, flags: int) -> bytes:
        first, second = names.split(b"\0")[:2]
        old, new = self._child(node, first), self._child(target, second)
        self._behaviour.change("exchange" if flags & EXCHANGE else "rename", new)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.renameat2(-100, os.fsencode(self._real(old)), -100, os.fsencode(self._real(new)), flags):
            raise OSError(ctypes.get_errno(), "renameat2")
        moves = [(old, new), (new, old)] if flags & EXCHANGE else [(old, new)]
        self._paths = {node: _moved_name(name, moves) for node, name in self._paths.items()}
        self._ids = {name: node for node, name in self._paths.items()}
        return b""

    def _open(self, node: int, body: bytes) -> bytes:
        flags = struct.unpack_from("<I", body)[0] & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        return struct.pack("<QII", os.open(self._real(self._paths[node]), flags), DIRECT_IO, 0)

    def _create(self, node: int, body: bytes) -> bytes:
        flags, mode, umask, _ = struct.unpack_from("<IIII", body)
        name = self._child(node, body[16:])
        self._behaviour.change("create", name)
        handle = os.open(self._real(name), flags | os.O_CREAT, 0o600)
        os.fchmod(handle, mode & ~umask & 0o7777)
        return self._entry(name) + struct.pack("<QII", handle, DIRECT_IO, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return self._behaviour.read(self._paths.get(node, ""), offset, os.pread(handle, size, offset))

    def _write(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        self._behaviour.change("write", self._paths.get(node, ""))
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def _fsync(self, node: int, body: bytes) -> bytes:
        self._behaviour.change("fsync", self._paths.get(node, ""))
        os.fsync(struct.unpack_from("<Q", body)[0])
        return b""

    def _release(self, node: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def _statfs(self, node: int, body: bytes) -> bytes:
        room = os.statvfs(self._folder)
        counts = (room.f_blocks, room.f_bfree, room.f_bavail, room.f_files, room.f_ffree)
        return struct.pack("<5Q10I", *counts, room.f_bsize, room.f_namemax, room.f_frsize, *[0] * 7)

    def _opendir(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0)

    def _readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        entries = sorted(os.scandir(self._real(self._paths[node])), key=lambda entry: entry.name)
        found = b""
        for number, entry in enumerate(entries[offset:], offset + 1):
            raw = os.fsencode(entry.name)
            record = struct.pack(
                "<QQII", entry.inode(), number, len(raw), entry.stat(follow_symlinks=False).st_mode >> 12
            )
            record += raw + bytes(-len(raw) % 8)
            if len(found) + len(record) > size:
                break
            found += record
        return found


def _moved_name(name: str, moves: list[tuple[str, str]]) -> str:
    for old, new in moves:
        if name == old or name.startswith(old + "/"):
            return new + name[len(old) :]
    return name


def can_serve() -> bool:
    """Is there FUSE, and may this process mount it?"""
    return os.getuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


@contextmanager
def behaving(folder: Path, at: Path, behaviour: Behaviour) -> Iterator[Path]:
    """`folder` once more at the new folder `at`, behaving like this. Raises OSError where it cannot be mounted."""
    at.mkdir(parents=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"ckpt", os.fsencode(at), b"fuse", 0, options.encode()):
        code = ctypes.get_errno()
        os.close(device)
        at.rmdir()
        raise OSError(code, os.strerror(code), str(at))
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            Server(folder, behaviour).serve(device)
        finally:
            os._exit(0)
    os.close(device)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=False, capture_output=True)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        at.rmdir()
