"""The text of a manifest: indented as the Hub's tools write JSON, but one line for each tensor and each origin.

Written by hand for the tables, since the json module takes a second for 93,000 indented rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

STEP = "  "
WIDTH = 120


class Table(dict[str, Any]):
    """Rows by tensor, whose text can be made while there is time for it. They do not change any more."""

    @cached_property
    def text(self) -> str:
        return _lines(self)


def manifest_text(document: Mapping[str, Any]) -> str:
    """`document` as JSON in ASCII, the same text for the same document."""
    return _object(document, "", {"origins": _origins, "shards": _shards}) + "\n"


def _object(members: Mapping[str, Any], margin: str, special: Mapping[str, Any]) -> str:
    inner = margin + STEP
    lines = [f"{inner}{quoted(key)}: {special.get(key, _plain)(value, inner)}" for key, value in members.items()]
    return "{\n" + ",\n".join(lines) + f"\n{margin}}}" if lines else "{}"


def _plain(value: Any, margin: str) -> str:
    """On one line where it fits there."""
    flat = json.dumps(value)
    if not value or not isinstance(value, (dict, list)) or len(margin) + len(flat) <= WIDTH:
        return flat
    inner = margin + STEP
    if isinstance(value, dict):
        return _object(value, margin, {})
    return "[\n" + ",\n".join(inner + _plain(one, inner) for one in value) + f"\n{margin}]"


def _origins(origins: Sequence[Any], margin: str) -> str:
    lines = [f"{margin}{STEP}{json.dumps(origin)}" for origin in origins]
    return "[\n" + ",\n".join(lines) + f"\n{margin}]" if lines else "[]"


def _shards(shards: Mapping[str, Any], margin: str) -> str:
    inner = margin + STEP
    lines = [f"{inner}{quoted(name)}: {_object(shard, inner, {'tensors': _tensors})}" for name, shard in shards.items()]
    return "{\n" + ",\n".join(lines) + f"\n{margin}}}" if lines else "{}"


def _tensors(rows: Mapping[str, Any], margin: str) -> str:
    """`margin` is always the same: tables stand in shards alone."""
    text = rows.text if isinstance(rows, Table) else _lines(rows)
    return f"{{\n{text}\n{margin}}}" if text else "{}"


def _lines(rows: Mapping[str, Any]) -> str:
    margin = 4 * STEP
    return ",\n".join(
        [
            f'{margin}{quoted(name)}: ["{sha256}", {origin}]' if sha256 else f"{margin}{quoted(name)}: [null, {origin}]"
            for name, (sha256, origin) in rows.items()
        ]
    )
