"""JSON documents whose text is edited, never re-serialised.

What an edit does not touch stays byte for byte: key order, indentation, escapes, number spellings, unknown keys.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from checkpoint.errors import Problem, UnreadableCheckpoint
from checkpoint.jsonedit import edit_json

MAX_DOCUMENT = 512 * 1024 * 1024
"""Bytes; far above any index, far below what would exhaust memory."""


@dataclass(frozen=True)
class Document:
    """A JSON object with the text it was read from."""

    text: str
    value: dict[str, Any]

    def with_value(self, value: dict[str, Any]) -> Document:
        """The document saying `value`, with the text of every unchanged member kept."""
        return replace(self, text=edit_json(self.text, value), value=value)

    @staticmethod
    def of(value: dict[str, Any]) -> Document:
        """A new document, indented by two blanks as the Hub's own tools write them."""
        return Document(json.dumps(value, indent=2, ensure_ascii=False) + "\n", value)


def read_document(path: Path) -> Document:
    """Read the JSON object in `path`. Raises UnreadableCheckpoint."""
    try:
        if path.stat().st_size > MAX_DOCUMENT:
            raise UnreadableCheckpoint(Problem("json-invalid", f"over {MAX_DOCUMENT:,} bytes", path.name))
        raw = path.read_bytes()
    except OSError as error:
        raise UnreadableCheckpoint(Problem("file-unreadable", error.strerror or str(error), path.name)) from error
    value = parse_json(raw, path.name)
    return Document(raw.decode(), value)


def parse_json(raw: bytes, file: str, code: str = "json-invalid") -> dict[str, Any]:
    """Parse a JSON object strictly: UTF-8, no repeated key, no NaN. Raises UnreadableCheckpoint naming `file`."""
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            repeated.extend(_repeated(items))
        return result

    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=pairs, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UnreadableCheckpoint(Problem(code, f"not JSON: {error}", file)) from error
    if not isinstance(value, dict):
        raise UnreadableCheckpoint(Problem(code, f"a JSON {type(value).__name__}", file, expected="an object"))
    if repeated:
        raise UnreadableCheckpoint([Problem("duplicate-key", "key occurs twice", file, key) for key in repeated])
    return value


def _repeated(items: list[tuple[str, Any]]) -> list[str]:
    seen: set[str] = set()
    return [key for key, _ in items if key in seen or seen.add(key)]  # type: ignore[func-returns-value]


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
