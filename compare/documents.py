"""What stands beside the weights: config.json and the index by their values, side files by their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from checkpoint import Checkpoint, Document, Problem, UnreadableCheckpoint
from checkpoint.side_files import RemoteSideFiles, SideFiles, is_same, size_of

State = Literal["absent", "equal", "respelled", "changed", "added", "removed"]
"""`respelled`: the text differs, what it says does not."""

ABSENT = object()
"""Stands for a member that is not there."""

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Change:
    """A member of a JSON document on both sides, `ABSENT` where it is not there."""

    path: Path
    a: Any
    b: Any


@dataclass(frozen=True)
class DocumentDiff:
    """A JSON document on both sides."""

    state: State
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class IndexDiff:
    """The index on both sides: its metadata, and of the tensors in both how many are in a shard of another name."""

    state: State
    metadata: tuple[Change, ...] = ()
    moved: int = 0


@dataclass(frozen=True)
class SideFile:
    """A file on both sides by size, None where it is not there."""

    name: str
    state: State
    a: int | None
    b: int | None


def compare_documents(a: Document | None, b: Document | None) -> DocumentDiff:
    """Member by member; a list is one value, unless the other has as many entries."""
    state = _state(a, b)
    if a is None or b is None or state == "equal":
        return DocumentDiff(state)
    return DocumentDiff(state, tuple(changes(a.value, b.value)))


def compare_indexes(a: Checkpoint, b: Checkpoint) -> IndexDiff:
    """By metadata and places; names that only one has are told elsewhere."""
    state = _state(a.index, b.index)
    if a.index is None or b.index is None or state == "equal":
        return IndexDiff(state)
    ours, theirs = a.tensors, b.tensors
    moved = sum(name in theirs and ref.path.name != theirs[name].path.name for name, ref in ours.items())
    before, after = (document.value.get("metadata") for document in (a.index, b.index))
    return IndexDiff(state, tuple(changes(before, after, ("metadata",))), moved)


def changes(a: Any, b: Any, path: Path = ()) -> Iterator[Change]:
    """Every member that is not the same on both sides, in the order of `a`, then what only `b` has."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from changes(a.get(key, ABSENT), b.get(key, ABSENT), (*path, key))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for number, (ours, theirs) in enumerate(zip(a, b, strict=True)):
            yield from changes(ours, theirs, (*path, number))
    elif not _is_same_value(a, b):
        yield Change(path, a, b)


def compare_side_files(a: SideFiles, b: SideFiles) -> list[SideFile]:
    """Every side file of either, by name. Raises UnreadableCheckpoint with all that cannot be read."""
    found, problems = [], []
    for name in sorted({*a, *b}):
        try:
            found.append(_side_file(a, b, name))
        except OSError as error:
            problems.append(Problem("file-unreadable", error.strerror or str(error), name))
    if problems:
        raise UnreadableCheckpoint(problems)
    return found


def _side_file(a: SideFiles, b: SideFiles, name: str) -> SideFile:
    ours, theirs = (size_of(files, name) if name in files else None for files in (a, b))
    if ours is None or theirs is None:
        return SideFile(name, "added" if ours is None else "removed", ours, theirs)
    same = _is_one_file(a, b, name) or is_same(a, b, name)
    return SideFile(name, "equal" if same else "changed", ours, theirs)


def _is_one_file(a: SideFiles, b: SideFiles, name: str) -> bool:
    """Is it one file under two names on this machine?"""
    if isinstance(a, RemoteSideFiles) or isinstance(b, RemoteSideFiles):
        return False
    return a[name].samefile(b[name])


def _state(a: Document | None, b: Document | None) -> State:
    if a is None or b is None:
        return "added" if b else "removed" if a else "absent"
    if a.text == b.text:
        return "equal"
    return "changed" if any(True for _ in changes(a.value, b.value)) else "respelled"


def _is_same_value(a: Any, b: Any) -> bool:
    """JSON knows `true` and `1` apart, as Python does not; 1 and 1.0 are one number."""
    return a is b or (
        a is not ABSENT and b is not ABSENT and isinstance(a, bool) == isinstance(b, bool) and bool(a == b)
    )
