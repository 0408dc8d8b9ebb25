"""Sources that fail, end early or change while they are read, and targets that fail, on a FUSE file system."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from reliability.disks.fuse import Behaviour, behaving
from reliability.disks.outcomes import Case, refusal, success
from reliability.disks.state import contents
from reliability.forking import ckpt

SHARD = "model-00002-of-00004.safetensors"
DATA = 40_000
"""A byte of every shard's data, behind its header."""


class ReadError(Behaviour):
    """Reading `name` at byte `at`, or behind it, fails as a bad sector does."""

    def __init__(self, name: str, at: int = 0) -> None:
        self.name, self.at = name, at

    def read(self, name: str, offset: int, data: bytes) -> bytes:
        if name.endswith(self.name) and offset + len(data) > self.at:
            raise OSError(errno.EIO, "bad sector")
        return data


class ShortReads(Behaviour):
    """Every read gives a third of what was asked for."""

    def read(self, name: str, offset: int, data: bytes) -> bytes:
        return data[: max(1, len(data) // 3)]


class EarlyEnd(Behaviour):
    """`name` ends at byte `at`, whatever its size is said to be."""

    def __init__(self, name: str, at: int) -> None:
        self.name, self.at = name, at

    def read(self, name: str, offset: int, data: bytes) -> bytes:
        return data[: max(0, self.at - offset)] if name.endswith(self.name) else data


class WrongSize(Behaviour):
    """`name` is said to be so much larger than it is."""

    def __init__(self, name: str, by: int) -> None:
        self.name, self.by = name, by

    def size(self, name: str, size: int) -> int:
        return size + self.by if name.endswith(self.name) else size


class Meddling(Behaviour):
    """When byte `DATA` of `name` is read, somebody does something to the file."""

    def __init__(self, name: str, real: Path, deed: Callable[[Path], object]) -> None:
        self.name, self.real, self.deed = name, real, deed
        self.done = False

    def read(self, name: str, offset: int, data: bytes) -> bytes:
        if name.endswith(self.name) and offset + len(data) > DATA and not self.done:
            self.done = True
            self.deed(self.real / name)
        return data


class Refusing(Behaviour):
    """An operation on names that end so fails with `code`."""

    def __init__(self, operation: str, name: str, code: int) -> None:
        self.operation, self.name, self.code = operation, name, code

    def change(self, operation: str, name: str) -> None:
        if operation == self.operation and name.endswith(self.name):
            raise OSError(self.code, os.strerror(self.code))


def lies(inputs: Path, room: Path) -> Iterator[Case]:
    """Every case; each mounts its own file system in `room`."""
    yield from _read_errors(inputs, room)
    yield from _odd_reads(inputs, room)
    yield from _changes(inputs, room)
    yield from _write_errors(inputs, room)


COMMANDS = {
    "quantize": ("quantize", "{view}/base", "--preset", "experts-int4-g32", "--no-verify", "--out", "{out}"),
    "ignore": ("ignore", "{view}/export", "add", "model.a", "--no-verify", "--out", "{out}"),
    "graft": (
        "graft",
        "{view}/export",
        "--from",
        "{view}/other",
        "--tensors",
        r"re:(?!.*\.experts\.)",
        "--no-verify",
        "--out",
        "{out}",
    ),
    "verify": ("verify", "{view}/export", "--base", "{view}/base"),
    "manifest verify": ("manifest", "verify", "{view}/export"),
}

READ = {
    "quantize": ("config.json", "index.json", SHARD, "tokenizer.json"),
    "ignore": ("config.json", "index.json", SHARD, "tokenizer.json", "ckpt.manifest.json"),
    "graft": (f"other/{SHARD}", "other/config.json"),
    "verify": (f"base/{SHARD}", f"export/{SHARD}", "config.json", "index.json"),
    "manifest verify": (SHARD, "ckpt.manifest.json", "tokenizer.json"),
}
"""Files of each command at which reading fails."""


def _words(name: str, room: Path) -> list[str]:
    return [word.format(view=room / "view", out=room / "work" / "out") for word in COMMANDS[name]]


def _fresh(room: Path) -> Path:
    shutil.rmtree(room / "work", ignore_errors=True)
    (room / "work").mkdir()
    return room / "work"


def _read_errors(inputs: Path, room: Path) -> Iterator[Case]:
    for command, files in READ.items():
        for file in files:
            for at in (0, DATA) if file.endswith(".safetensors") else (0,):

                def check(command: str = command, file: str = file, at: int = at) -> str:
                    work = _fresh(room)
                    with behaving(inputs, room / "view", ReadError(file, at)):
                        name = file.rsplit("/", 1)[-1]
                        return refusal(
                            _words(command, room),
                            (inputs, work),
                            rf"{name}.*: .*Input/output error",
                            codes=(1, 3) if "verify" in command else (3,),
                        )

                yield "EIO while a file is read", check, ""


def _odd_reads(inputs: Path, room: Path) -> Iterator[Case]:
    for command in ("quantize", "ignore", "graft"):

        def short(command: str = command) -> str:
            work = _fresh(room)
            with behaving(inputs, room / "view", Behaviour()):
                expected = _made(command, room)
            _fresh(room)
            with behaving(inputs, room / "view", ShortReads()):
                return success(_words(command, room), work / "out", expected, (inputs,))

        yield "reads that give less than was asked for", short, "same bytes"
        file = f"other/{SHARD}" if command == "graft" else SHARD

        def early(command: str = command, file: str = file) -> str:
            work = _fresh(room)
            with behaving(inputs, room / "view", EarlyEnd(file, DATA)):
                return refusal(_words(command, room), (inputs, work), rf"{SHARD}: ends at byte")

        yield "a file that ends before its size says", early, ""

        def wrong(command: str = command, file: str = file) -> str:
            work = _fresh(room)
            with behaving(inputs, room / "view", WrongSize(file, 100)):
                return refusal(_words(command, room), (inputs, work), rf"{SHARD}: 100 bytes behind the last tensor")

        yield "a size that is not that of the content", wrong, ""


def _made(command: str, room: Path) -> dict[str, object]:
    ended = ckpt(_words(command, room))
    if ended.code:
        raise RuntimeError(ended.said)
    return contents(room / "work" / "out")


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _shrink(path: Path) -> None:
    os.truncate(path, DATA // 2)


def _overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(DATA)
        file.write(b"changed")


def _replace(path: Path) -> None:
    twin = path.with_name("twin")
    shutil.copy2(path, twin)
    os.replace(twin, path)


def _touch(path: Path) -> None:
    os.utime(path)


def _overwrite_unseen(path: Path) -> None:
    before = path.stat()
    _overwrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


DEEDS = {
    "grows": _grow, "shrinks": _shrink, "is written to": _overwrite, "is replaced": _replace, "is touched": _touch,
}  # fmt: skip


def _changes(inputs: Path, room: Path) -> Iterator[Case]:
    for command in ("quantize", "ignore", "graft"):
        for deed, do in DEEDS.items():

            def check(command: str = command, do: Callable[[Path], object] = do) -> str:
                work, copied = _fresh(room), _copied(inputs, room)
                file = f"other/{SHARD}" if command == "graft" else SHARD
                with behaving(copied, room / "view", Meddling(file, copied, do)):
                    return refusal(_words(command, room), (work,), rf"{SHARD}: (changed since|ends at byte)")

            yield f"a source that {deed} while it is read", check, ""

    def unseen() -> str:
        _fresh(room)
        copied = _copied(inputs, room)
        with behaving(copied, room / "view", Meddling(SHARD, copied, _overwrite_unseen)):
            ended = ckpt(_words("ignore", room))
            told = ckpt(["manifest", "verify", room / "work" / "out"])
        return "" if (ended.code, told.code) == (0, 0) else f"{ended.said} {told.said}"

    yield "content that changes behind an unchanged time and size", unseen, UNSEEN


UNSEEN = (
    "not noticed, and cannot be without a second reading: what was read is written, and the manifest has the hash of "
    "what was written"
)


def _copied(inputs: Path, room: Path) -> Path:
    shutil.rmtree(room / "copied", ignore_errors=True)
    return Path(shutil.copytree(inputs, room / "copied"))


FAILING = (
    ("create", ".ckpt-lock", errno.EROFS), ("create", SHARD, errno.EACCES), ("create", "config.json", errno.EIO),
    ("mkdir", ".ckpt-new", errno.EACCES), ("write", SHARD, errno.EIO), ("write", "config.json", errno.EIO),
    ("write", "ckpt.manifest.json", errno.EIO), ("write", ".ckpt-journal", errno.EDQUOT), ("fsync", SHARD, errno.EIO),
    ("fsync", "config.json", errno.ENOSPC), ("rename", "out", errno.EIO),
    ("create", "tokenizer.json", errno.ENAMETOOLONG),
)  # fmt: skip


def _write_errors(inputs: Path, room: Path) -> Iterator[Case]:
    for operation, name, code in FAILING:

        def check(operation: str = operation, name: str = name, code: int = code) -> str:
            work = _fresh(room)
            words = [word.format(view=inputs, out=room / "view" / "out") for word in COMMANDS["ignore"]]
            with behaving(work, room / "view", Refusing(operation, name, code)):
                return refusal(words, (inputs, work), rf"{name}: {os.strerror(code)}")

        yield "a target where a call fails", check, "create, write, fsync, mkdir, rename"
