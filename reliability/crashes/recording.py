"""All that a run changes on the disk, in its order, with the bytes: what a crash of the machine can take back."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from reliability.crashes.kills import Trial
from reliability.crashes.tracer import Boundary

Name = tuple[int, str]
"""An entry of a folder: the folder's inode and the name in it."""

EXCHANGE = 2


@dataclass(frozen=True)
class Step:
    """One change. `names`: entries of folders that appear, change or (None) go, all at once. `data`: bytes at an offset
    of a file. `size`: a file's new size. `sync`: what is said of `inode` is on the disk from here on."""

    kind: Literal["names", "data", "size", "sync"]
    inode: int = 0
    names: Mapping[Name, int | None] = field(default_factory=dict)
    offset: int = 0
    content: bytes = b""

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(name for _, name in self.names)}" if self.names else self.kind


@dataclass
class Node:
    """A file, folder or link: what is on the disk of it."""

    mode: int
    content: bytes = b""


@dataclass(frozen=True)
class Recording:
    """`nodes` and `entries` before the run, `made` the kind and mode of what it made, and all its steps."""

    root: int
    nodes: Mapping[int, Node]
    entries: Mapping[Name, int]
    made: Mapping[int, Node]
    steps: tuple[Step, ...]


def recorded(trial: Trial) -> Recording:
    """Run the trial's command once, writing down every step."""
    trial.fresh_room()
    nodes, entries = _tree(trial.room)
    writer = _Writer()
    done = trial.run(writer.before, writer.after)
    if done.code:
        raise RuntimeError(f"{trial.case.name}: {done.said}")
    made = {inode: node for inode, node in writer.made.items() if inode not in nodes}
    now, _ = _tree(trial.room)
    for inode, node in now.items():
        if inode in made:
            made[inode].mode = node.mode
    return Recording(trial.room.stat().st_ino, nodes, entries, made, tuple(writer.steps))


def _tree(root: Path) -> tuple[dict[int, Node], dict[Name, int]]:
    nodes = {root.stat().st_ino: Node(root.stat().st_mode)}
    entries: dict[Name, int] = {}
    for folder, folders, files in os.walk(root):
        home = os.stat(folder).st_ino
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            found = os.lstat(path)
            entries[home, name] = found.st_ino
            nodes[found.st_ino] = _node(path, found)
    return nodes, entries


def _node(path: str, found: os.stat_result) -> Node:
    if stat.S_ISLNK(found.st_mode):
        return Node(found.st_mode, os.fsencode(os.readlink(path)))
    if stat.S_ISREG(found.st_mode):
        return Node(found.st_mode, Path(path).read_bytes())
    return Node(found.st_mode)


class _Writer:
    """Takes down each call at its beginning, and keeps it once it has succeeded."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.made: dict[int, Node] = {}
        self._pending: Step | None = None
        self._new = False

    def before(self, call: Boundary) -> bool:
        self._pending, self._new = self._told(call), False
        if call.call.name in ("openat", "mkdir", "mkdirat", "symlink", "symlinkat"):
            self._new = not os.path.lexists(call.paths[-1])
        return True

    def after(self, call: Boundary, result: int) -> None:
        if result < 0:
            return
        if self._new:
            path = call.paths[-1]
            found = os.lstat(path)
            link = os.fsencode(os.readlink(path)) if stat.S_ISLNK(found.st_mode) else b""
            self.made[found.st_ino] = Node(found.st_mode, link)
            self.steps.append(Step("names", names={_name(path): found.st_ino}))
        elif self._pending is not None:
            step = self._pending
            if step.kind == "data" and result < len(step.content):
                step = Step("data", step.inode, offset=step.offset, content=step.content[:result])
            self.steps.append(step)

    def _told(self, call: Boundary) -> Step | None:
        name, paths = call.call.name, call.paths
        if name in ("fsync", "fdatasync"):
            return Step("sync", _inode(call, 0))
        if name == "ftruncate":
            return Step("size", _inode(call, 0), offset=call.argument(1))
        if name in ("write", "pwrite", "copy_file_range"):
            return _data(call)
        if name in ("link", "linkat"):
            return Step("names", names={_name(paths[1]): os.lstat(paths[0]).st_ino})
        if name in ("unlink", "unlinkat", "rmdir") and os.path.lexists(paths[0]):
            return Step("names", names={_name(paths[0]): None})
        if name in ("rename", "renameat", "renameat2"):
            return _renamed(call)
        return None


def _data(call: Boundary) -> Step:
    """What is about to be written, and where."""
    if call.call.name == "copy_file_range":
        source, at = call.argument(0), int.from_bytes(call.memory(call.argument(1), 8), "little")
        position = int.from_bytes(call.memory(call.argument(3), 8), "little")
        with open(f"/proc/{call.process}/fd/{source}", "rb") as file:
            file.seek(at)
            return Step("data", _inode(call, 2), offset=position, content=file.read(call.argument(4)))
    content = call.memory(call.argument(1), call.argument(2))
    if call.call.name == "pwrite":
        return Step("data", _inode(call, 0), offset=call.argument(3), content=content)
    return Step("data", _inode(call, 0), offset=_position(call), content=content)


def _position(call: Boundary) -> int:
    """Where a plain `write` goes: to the end of a file that is open for appending."""
    handle = call.argument(0)
    told = dict(
        line.split(":\t") for line in Path(f"/proc/{call.process}/fdinfo/{handle}").read_text().splitlines()[:3]
    )
    if int(told["flags"], 8) & os.O_APPEND:
        return os.stat(f"/proc/{call.process}/fd/{handle}").st_size
    return int(told["pos"])


def _renamed(call: Boundary) -> Step:
    old, new = call.paths
    if call.call.name == "renameat2" and call.argument(4) & EXCHANGE:
        return Step("names", names={_name(old): os.lstat(new).st_ino, _name(new): os.lstat(old).st_ino})
    return Step("names", names={_name(old): None, _name(new): os.lstat(old).st_ino})


def _inode(call: Boundary, argument: int) -> int:
    return os.stat(f"/proc/{call.process}/fd/{call.argument(argument)}").st_ino


def _name(path: str) -> Name:
    return os.stat(os.path.dirname(path)).st_ino, os.path.basename(path)
