"""JSON documents whose text is edited, never re-serialised.

What an edit does not touch stays byte for byte: key order, indentation, escapes, number spellings, unknown keys.
"""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from checkpoint.errors import Problem, UnreadableCheckpoint, bounded, brief
from checkpoint.jsonedit import edit_json
from checkpoint.wholefile import read_whole

MAX_DOCUMENT = 128 * 1024 * 1024
"""Bytes; the index of a million tensors has as many. Empty lists take 21 times their text in memory."""

MAX_DEPTH = 127
"""Objects and lists inside one another; serde_json, which reads these files too, stops there."""

MOST_DIGITS = 100
"""Of a whole number. `model_max_length` of a tokenizer can have 31; what is computed from 40 such can be shown."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Document:
    """A JSON object with the text it was read from. `path` is the file that it descends from, by however many edits."""

    text: str
    value: dict[str, Any]
    path: Path | None = field(default=None, compare=False)

    def with_value(self, value: dict[str, Any]) -> Document:
        """The document saying `value`, with the text of every unchanged member kept."""
        return replace(self, text=edit_json(self.text, value), value=value)

    @staticmethod
    def of(value: dict[str, Any]) -> Document:
        """A new document, indented by two blanks as the Hub's own tools write them."""
        return Document(json.dumps(value, indent=2, ensure_ascii=False) + "\n", value)


def read_document(path: Path, known: Document | None = None) -> Document:
    """Read the JSON object in `path`; it is `known` itself if it has its text. Raises UnreadableCheckpoint."""
    try:
        raw = read_whole(path, MAX_DOCUMENT)
    except OSError as error:
        code = "json-invalid" if error.errno == errno.EFBIG else "file-unreadable"
        raise UnreadableCheckpoint(Problem(code, error.strerror or str(error), path.name)) from error
    if known is not None and raw == known.text.encode():
        return known
    value = parse_json(raw, path.name)
    if is_deeper(value, MAX_DEPTH):
        raise UnreadableCheckpoint(Problem("json-invalid", f"nested more than {MAX_DEPTH} deep", path.name))
    return Document(raw.decode(), value, path)


def parse_json(raw: bytes, file: str, code: str = "json-invalid") -> dict[str, Any]:
    """Parse a JSON object strictly: UTF-8, no repeated key, no NaN, no number of more than MOST_DIGITS.

    Raises UnreadableCheckpoint naming `file`.
    """
    value, repeated = scan_json(raw, file, code, parse_int=_short)
    if repeated:
        raise UnreadableCheckpoint(repeated)
    return value


def scan_json(
    raw: bytes, file: str, code: str = "json-invalid", parse_int: Callable[[str], int] | None = None
) -> tuple[dict[str, Any], list[Problem]]:
    """As `parse_json`, but repeated keys, of which the last counts, are returned beside the value."""
    kept = 0

    def count(members: dict[str, Any]) -> dict[str, Any]:
        nonlocal kept
        kept += len(members)
        return members

    try:
        text = raw.decode()
        value = json.loads(
            text, object_hook=count, parse_float=_finite, parse_int=parse_int, parse_constant=_no_constant
        )
        if "\\" in text and _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise UnreadableCheckpoint(Problem(code, f"not JSON: {error}", file)) from error
    if not isinstance(value, dict):
        raise UnreadableCheckpoint(Problem(code, f"a JSON {type(value).__name__}", file, expected="an object"))
    # Every member has a colon. Where the text has no more of them than members were kept, none was lost: a proof that
    # spares building a list of pairs for each of 100,000 objects.
    if text.count(":") == kept:
        return value, []
    return value, bounded(Problem("duplicate-key", "key occurs twice", file, key) for key in _repeated(text))


def _repeated(text: str) -> list[str]:
    """Every key that an object of `text` has more than once."""
    repeated: dict[str, None] = {}

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    repeated[key] = None
                seen.add(key)
        return result

    json.loads(text, object_pairs_hook=pairs)
    return list(repeated)


def is_deeper(value: Any, limit: int) -> bool:
    """Are there more than `limit` objects and lists inside one another?"""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        inner = (part.values() if isinstance(part, dict) else part for part in level)
        level = [part for parts in inner for part in parts if isinstance(part, (dict, list))]
        if not level:
            return False
    return True


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{brief(text)} is out of range")
    return number


def _short(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"{brief(text)} has more than {MOST_DIGITS} digits")
    return int(text)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
