"""Headers of safetensors files, held against the reader of the `safetensors` package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from random import Random
from typing import Any

from checkpoint import Header, UnreadableCheckpoint, parse_header
from checkpoint.header import header_length
from reliability.fuzzing.mutation import mutate_json
from reliability.fuzzing.target import Target, expect

WIDTHS = {"F32": 4, "BF16": 2, "I8": 1, "I64": 8, "F8_E4M3": 1, "I32": 4, "BOOL": 1}
MOST_DATA = 4096
NAME = Path("x.safetensors")


def read(data: bytes) -> None:
    """What we accept, safetensors accepts, with the same tensors of the same bytes."""
    try:
        length = header_length(NAME.name, data[:8], len(data), data[8:40])
        header = parse_header(data[8 : 8 + length], NAME, len(data))
    except UnreadableCheckpoint as refusal:
        expect(bool(str(refusal)), "a refusal without a word")
        return
    _agree(header, data)


def _agree(header: Header, data: bytes) -> None:
    from safetensors import deserialize

    theirs = {name: (one["dtype"], tuple(one["shape"]), bytes(one["data"])) for name, one in deserialize(data)}  # type: ignore[no-untyped-call]
    ours = {r.name: (r.dtype, r.shape, data[r.offset : r.offset + r.nbytes]) for r in header.tensors.values()}
    expect(ours == theirs, f"we read {ours}, safetensors {theirs}")


def seeds() -> Iterator[bytes]:
    """Sound files, and some that are nearly so."""
    yield _file({})
    yield _file({"__metadata__": {"format": "pt"}, "a.weight": _entry("BF16", [2, 3], 0)})
    yield _file({"b": _entry("I64", [2], 0), "a": _entry("F32", [], 16), "e": _entry("F32", [0, 7], 20)})
    yield _file({"__metadata__": None, "x": _entry("F8_E4M3", [4], 0)})
    yield b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12\n"
    yield (200).to_bytes(8, "little") + b"{}"


def mutate(data: bytes, random: Random) -> bytes:
    """Another header; half of the time with offsets that fit, and nearly always with the length that is announced."""
    text = data[8 : 8 + int.from_bytes(data[:8], "little") % (1 << 16)]
    mutated = mutate_json(text, random)
    document = _parsed(mutated)
    if document is not None and random.random() < 0.5:
        mutated = json.dumps(_tiled(document, random)).encode()
        document = _parsed(mutated)
    if random.random() < 0.02:
        return data[:8] + mutated
    mutated += random.choice((b"", b"", b" ", b"\n\t", b"\0"))
    return len(mutated).to_bytes(8, "little") + mutated + bytes(_end(document) + random.choice((0, 0, 0, 0, 1)))


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _tiled(document: dict[str, Any], random: Random) -> dict[str, Any]:
    """The entries that can be understood, one after another, in an order that need not be that of the text."""
    entries = [(name, entry) for name, entry in document.items() if name != "__metadata__" and _size(entry) is not None]
    random.shuffle(entries)
    position = 0
    for _, entry in entries:
        end = position + (_size(entry) or 0)
        entry["data_offsets"] = [position, end]
        position = end
    return document


def _size(entry: Any) -> int | None:
    if not isinstance(entry, dict) or not isinstance(shape := entry.get("shape"), list):
        return None
    width = WIDTHS.get(str(entry.get("dtype")))
    whole = all(type(length) is int and 0 <= length < 64 for length in shape)
    return width * prod(shape) if width and whole and prod(shape) < MOST_DATA else None


def _end(document: dict[str, Any] | None) -> int:
    """Bytes of data that the entries claim, as far as they are few."""
    ends = [0]
    for entry in (document or {}).values():
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if isinstance(offsets, list) and len(offsets) == 2 and type(offsets[1]) is int:
            ends.append(offsets[1])
    return max(end if 0 <= end <= MOST_DATA else 0 for end in ends)


def _entry(dtype: str, shape: list[int], begin: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + WIDTHS[dtype] * prod(shape)]}


def _file(document: dict[str, Any]) -> bytes:
    text = json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text + bytes(_end(document))


TARGETS = (
    Target(
        "header",
        "safetensors header",
        read,
        seeds,
        mutate,
        ('"dtype"', '"shape"', '"data_offsets"', '"__metadata__"', *WIDTHS, "F4", "F6_E2M3", "-0", "1e0", "\\ud83d"),
        longest=8192,
        asked=10_000_000,
    ),
)
