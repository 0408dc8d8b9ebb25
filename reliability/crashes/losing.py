"""What may be on the disk after a crash of the machine: what was flushed, and of the rest anything.

Two models. `strict` is what POSIX promises: without `fsync` of the file its bytes and its size, without `fsync` of a
folder its entries may be there or not, each by itself and in any order; a rename happens whole or not. `ordered` is
ext4 with its default journal: entries come back in their order up to some point, which any `fsync` moves to itself;
bytes that were not flushed may be missing or zero all the same.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from pathlib import Path
from typing import Literal

from reliability.crashes.recording import Name, Node, Recording, Step

Model = Literal["strict", "ordered"]
MODELS: tuple[Model, ...] = ("strict", "ordered")

PAGE = 4096

Disk = tuple[dict[int, Node], dict[Name, int]]


def crash_points(recording: Recording) -> list[int]:
    """Numbers of steps behind which the machine goes down: around every flush and every change of several names."""
    steps = recording.steps
    points = {len(steps)}
    for number, step in enumerate(steps):
        if step.kind == "sync" or len(step.names) > 1:
            points |= {number, number + 1}
    return sorted(points)


def left(recording: Recording, point: int, model: Model, kept: float, chance: random.Random) -> Disk:
    """The disk where the machine goes down behind the first `point` steps; of what is unsure `kept` of 1 is there."""
    steps = recording.steps[:point]
    sure = _flushed(steps)
    cut = _cut(steps, kept, chance)
    nodes = {inode: Node(node.mode, node.content) for inode, node in {**recording.nodes, **recording.made}.items()}
    entries = dict(recording.entries)
    for number, step in enumerate(steps):
        there = number in sure or chance.random() < kept
        if model == "ordered" and step.kind in ("names", "size"):
            there = number < cut
        if not there:
            continue
        if step.kind == "names":
            _rename(entries, step)
        elif step.kind != "sync" and step.inode in nodes:
            _fill(nodes[step.inode], step, whole=number in sure or kept == 1, chance=chance)
    return nodes, entries


def _flushed(steps: tuple[Step, ...]) -> set[int]:
    """Numbers of the steps that a later flush of their file or of one of their folders made sure."""
    synced: set[int] = set()
    sure = set()
    for number in range(len(steps) - 1, -1, -1):
        step = steps[number]
        if step.kind == "sync":
            synced.add(step.inode)
        touched = {folder for folder, _ in step.names} if step.kind == "names" else {step.inode}
        if touched & synced:
            sure.add(number)
    return sure


def _cut(steps: tuple[Step, ...], kept: float, chance: random.Random) -> int:
    """Where the journal ends: behind the last flush of anything."""
    last = max((number for number, step in enumerate(steps) if step.kind == "sync"), default=0)
    return {0.0: last, 1.0: len(steps)}.get(kept, chance.randint(last, len(steps)))


def _rename(entries: dict[Name, int], step: Step) -> None:
    for name, inode in step.names.items():
        if inode is None:
            entries.pop(name, None)
        else:
            entries[name] = inode


def _fill(node: Node, step: Step, *, whole: bool, chance: random.Random) -> None:
    """Apply a change of size, or bytes; of unsure bytes some pages are zero, or the end is missing."""
    old = node.content
    if step.kind == "size":
        node.content = old[: step.offset].ljust(step.offset, b"\0")
        return
    content = step.content
    if not whole and chance.random() < 0.5:
        content = content[: chance.randrange(len(content) + 1)]
    elif not whole:
        pieces = (content[start : start + PAGE] for start in range(0, len(content), PAGE))
        content = b"".join(piece if chance.random() < 0.5 else bytes(len(piece)) for piece in pieces)
    end = step.offset + len(content)
    node.content = old[: step.offset].ljust(step.offset, b"\0") + content + old[end:]


def put(disk: Disk, recording: Recording, room: Path) -> None:
    """Make `room` what is on the disk."""
    shutil.rmtree(room, ignore_errors=True)
    nodes, entries = disk
    children: dict[int, list[tuple[str, int]]] = {}
    for (folder, name), inode in entries.items():
        children.setdefault(folder, []).append((name, inode))
    first: dict[int, Path] = {}
    _put(room, recording.root, nodes, children, first)


def _put(
    path: Path, inode: int, nodes: dict[int, Node], children: dict[int, list[tuple[str, int]]], first: dict[int, Path]
) -> None:
    node = nodes[inode]
    if stat.S_ISDIR(node.mode):
        path.mkdir()
        for name, child in children.get(inode, ()):
            _put(path / name, child, nodes, children, first)
        path.chmod(stat.S_IMODE(node.mode))
    elif inode in first:
        os.link(first[inode], path)
    elif stat.S_ISLNK(node.mode):
        path.symlink_to(os.fsdecode(node.content))
    else:
        first[inode] = path
        path.write_bytes(node.content)
        path.chmod(stat.S_IMODE(node.mode))
