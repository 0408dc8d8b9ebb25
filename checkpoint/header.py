"""The header of a safetensors file: strict reading, deterministic writing.

The `safetensors` package takes the last of two equal keys, leading blanks and unknown fields without a word; a file
that means two things to two readers is refused here. Layout: 8 bytes little-endian length N, N bytes of JSON, data.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import chain, repeat
from operator import itemgetter, sub
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

from checkpoint import dtypes
from checkpoint.document import scan_json
from checkpoint.errors import MOST_PROBLEMS, Problem, UnreadableCheckpoint, bounded, brief
from checkpoint.places import File

LONGEST_TENSOR_NAME = 1024
"""Characters. No module path comes near it, and what is matched against names takes longer than they are long."""

MAX_HEADER = 100_000_000
"""The limit in safetensors itself; larger headers cannot be loaded by anything."""

LFS_POINTER = b"version https://git-lfs"

SHOWN = 100
"""Characters of a name that is too long."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"')
"""Possessive: there is one way to read it, and a hundred bytes would be kept for each character to find another."""

_FIELDS = itemgetter("dtype", "shape", "data_offsets")


class TensorRef(NamedTuple):
    """A stored tensor: `nbytes` bytes at `offset` (absolute) of `path`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: File
    offset: int
    nbytes: int


_as_ref = partial(tuple.__new__, TensorRef)
"""`TensorRef._make` without its frame: it is called for each of 100,000 tensors."""


class Header(NamedTuple):
    """What a safetensors file says of itself. `tensors` is in the order of their bytes.

    `stamp` is device, inode, size and time of the file when it was read: another stamp means another file.
    """

    tensors: dict[str, TensorRef]
    metadata: dict[str, str] | None
    nbytes: int
    stamp: tuple[int, int, int, int] | None = None


def moved_header(header: Header, path: File) -> Header:
    """`header` as that of `path`, another name of the same file."""
    rows = (
        (name, dtype, shape, path, offset, nbytes) for name, dtype, shape, _, offset, nbytes in header.tensors.values()
    )
    return header._replace(tensors=dict(zip(header.tensors, map(_as_ref, rows), strict=True)))


def read_header(path: Path) -> Header:
    """Read and prove the header of `path`. Raises UnreadableCheckpoint with all that is wrong with it."""
    try:
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            start = file.read(8)
            length = header_length(path.name, start, stat.st_size, file.peek(32)[:32])
            raw = file.read(length)
    except OSError as error:
        raise _fault("file-unreadable", path.name, error.strerror or str(error)) from error
    return parse_header(raw, path, stat.st_size)._replace(stamp=stamp(stat))


def stamp(stat: os.stat_result) -> tuple[int, int, int, int]:
    """What tells a file from one that took its place, or that was written since."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def parse_header(raw: bytes, path: File, size: int) -> Header:
    """Parse header bytes `raw` of a file of `size` bytes; offsets become absolute."""
    if not raw.startswith(b"{"):
        raise _fault("header-invalid", path.name, f"header starts with {raw[:1]!r}", "'{'")
    document, problems = scan_json(raw, path.name, code="header-invalid")
    metadata = document.pop("__metadata__", None)
    if metadata is not None and not _is_text_map(metadata):
        problems.append(Problem("header-invalid", "__metadata__ is not a map of strings", path.name))
    if _has_minus_zero(raw):
        problems.append(Problem("header-invalid", "the number -0", path.name, expected="whole numbers from 0"))
    data_start = 8 + len(raw)
    tensors = None if problems else _sound_entries(document, path, data_start, size)
    if tensors is None:
        tensors = _judged_entries(document, path, data_start, size, problems)
    return Header(tensors, metadata, data_start)


def encode_header(tensors: Iterable[tuple[str, str, tuple[int, ...], int]], metadata: Mapping[str, str]) -> bytes:
    """Header bytes, length prefix included, for (name, dtype, shape, nbytes) laid out one after another.

    The JSON is padded with blanks to a multiple of 8, so that data which is aligned in the plan is aligned in the file.
    """
    document: dict[str, Any] = {"__metadata__": dict(metadata)}
    position = 0
    for name, dtype, shape, size in tensors:
        document[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def header_length(file: str, start: bytes, size: int, following: bytes) -> int:
    """Bytes of JSON that the first 8 bytes announce, in a file of `size` bytes. Raises UnreadableCheckpoint."""
    if (start + following).startswith(LFS_POINTER):
        remedy = "Fetch the file itself: git lfs pull"
        raise _fault("lfs-pointer", file, "a git-lfs pointer, not the weights", "a safetensors file", remedy)
    if len(start) < 8:
        raise _fault("header-truncated", file, f"{size} bytes", "at least 8")
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER:
        raise _fault("header-too-large", file, f"header of {length:,} bytes", f"at most {MAX_HEADER:,}")
    if 8 + length > size:
        raise _fault("header-truncated", file, f"header of {length:,} bytes in a file of {size:,}")
    return length


def _sound_entries(document: dict[str, Any], path: File, data_start: int, size: int) -> dict[str, TensorRef] | None:
    """All tensors of a header without a fault that lists them in the order of their bytes; None for any other.

    It asks the same as `_entry` and `_layout_problems`, of whole columns instead of one tensor after another: thousands
    of tensors have a few dozen shapes, and those that begin where the one before ends need not be sorted.
    """
    entries = document.values()
    try:
        words, lists, spans = zip(*map(_FIELDS, entries), strict=True)
        begins, ends = zip(*spans, strict=True)
        numbers = chain(begins, ends, chain.from_iterable(lists))
        # What is no object has no such fields, and what is no list has no numbers in it, unless it is empty.
        if not (_are(list, lists) and _are(int, numbers)) or "" in document:
            return None
        if max(map(len, document)) > LONGEST_TENSOR_NAME:
            return None
        known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        shapes = [known.setdefault(shape, shape) for shape in map(tuple, lists)]
        dtype_names, sizes = list(map(intern, words)), list(map(sub, ends, begins))
        kinds = set(zip(dtype_names, shapes, sizes, strict=True))
        fitting = all(_nbytes(dtype, *shape) == nbytes for dtype, shape, nbytes in kinds)
    except (TypeError, KeyError, ValueError):
        return None
    tiled = begins == (0, *ends[:-1]) and data_start + ends[-1] == size
    if not fitting or not tiled or set(map(len, entries)) != {3}:
        return None
    offsets = [data_start + begin for begin in begins]
    rows = zip(document, dtype_names, shapes, repeat(path), offsets, sizes, strict=False)
    return dict(zip(document, map(_as_ref, rows), strict=True))


def _are(kind: type, values: Iterable[Any]) -> bool:
    """Are all values of the very type `kind`? A bool is no int here."""
    return set(map(type, values)) <= {kind}


def _judged_entries(
    document: dict[str, Any], path: File, data_start: int, size: int, problems: list[Problem]
) -> dict[str, TensorRef]:
    """All tensors in the order of their bytes. Raises UnreadableCheckpoint with `problems` and what is wrong here."""
    refs: list[TensorRef] = []
    for name, entry in document.items():
        if ref := _entry(name, entry, path, data_start, problems):
            refs.append(ref)
        if len(problems) > MOST_PROBLEMS:
            raise UnreadableCheckpoint(bounded(problems))
    refs.sort(key=itemgetter(4, 5))
    complete = len(refs) == len(document) and not any(problem.code == "duplicate-key" for problem in problems)
    problems += bounded(_layout_problems(refs, path.name, data_start, size, complete=complete))
    if problems:
        raise UnreadableCheckpoint(problems)
    return {ref.name: ref for ref in refs}


def _entry(name: str, entry: Any, path: File, data_start: int, problems: list[Problem]) -> TensorRef | None:
    """One tensor of the header, at the bytes it claims; None where it claims none. Faults are added to `problems`."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        wellformed = len(entry) == 3 and type(shape) is list and type(begin) is type(end) is int
    except (TypeError, KeyError, ValueError):
        wellformed = False
    if len(name) > LONGEST_TENSOR_NAME:
        found, expected = f"a name of {len(name):,} characters", f"at most {LONGEST_TENSOR_NAME:,}"
        problems.append(Problem("entry-invalid", found, path.name, f"{name[:SHOWN]}...", expected))
        return None
    if not wellformed or not name or not 0 <= begin <= end < dtypes.LIMIT**2:
        expected = "a name, and exactly dtype, shape and data_offsets"
        problems.append(Problem("entry-invalid", "malformed entry", path.name, name, expected))
        return None
    try:
        size = _nbytes(dtype, *shape)
    except (TypeError, KeyError, ValueError) as error:
        problems.append(_size_problem(name, dtype, shape, path.name, error))
    else:
        if end - begin != size:
            found = f"{end - begin:,} bytes for {dtype} {brief(shape)}"
            problems.append(Problem("size-mismatch", found, path.name, name, f"{size:,}"))
    return TensorRef(name, dtype, tuple(shape), path, data_start + begin, end - begin)


@lru_cache(maxsize=4096, typed=True)  # few shapes, many tensors; typed, so that 1.0 and true are not taken for 1
def _nbytes(dtype: Any, *shape: Any) -> int:
    if type(dtype) is not str or any(type(length) is not int or not 0 <= length < dtypes.LIMIT for length in shape):
        raise TypeError
    return dtypes.nbytes(dtype, shape)


def _size_problem(name: str, dtype: Any, shape: list[Any], file: str, error: Exception) -> Problem:
    """Why no size could be computed."""
    if isinstance(error, KeyError):
        return Problem("dtype-unknown", f"dtype {brief(dtype)}", file, name, "a safetensors dtype")
    if isinstance(error, TypeError):
        return Problem(
            "entry-invalid", f"dtype {brief(dtype)}, shape {brief(shape)}", file, name, "a word and whole numbers"
        )
    return Problem("size-mismatch", str(error), file, name)


def _layout_problems(
    refs: list[TensorRef], file: str, data_start: int, size: int, *, complete: bool
) -> Iterator[Problem]:
    """The tensors must tile the data section: no overlap, no hole, nothing behind the last.

    Where they are not `complete`, holes and trailing bytes mean nothing.
    """
    position = data_start
    for ref in refs:
        if ref.offset < position:
            yield Problem("overlap", f"starts {position - ref.offset:,} bytes inside its neighbour", file, ref.name)
        elif ref.offset > position and complete:
            yield Problem("hole", f"{ref.offset - position:,} bytes before it belong to no tensor", file, ref.name)
        position = max(position, ref.offset + ref.nbytes)
    if position > size:
        yield Problem("truncated", f"file of {size:,} bytes", file, expected=f"{position:,}", remedy="Copy it again")
    elif position < size and complete:
        yield Problem("trailing-bytes", f"{size - position:,} bytes behind the last tensor", file, expected="none")


def _has_minus_zero(raw: bytes) -> bool:
    """Is there a -0, which Python takes for 0 and safetensors for no whole number?"""
    return b"-" in raw and b"-0" in raw and b"-0" in _STRING.sub(b"", raw)


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


def _fault(code: str, file: str, found: str, expected: str = "", remedy: str = "") -> UnreadableCheckpoint:
    return UnreadableCheckpoint(Problem(code, found, file, expected=expected, remedy=remedy))
