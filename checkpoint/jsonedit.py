"""Minimal edits to the text of a JSON object.

The text is walked beside the old and the new value. A member whose value did not change is copied as it stands; one
that did is replaced, in the indentation and separators of its neighbours.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # the typeshed stub lacks it
from typing import Any, NamedTuple

_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")


class Style(NamedTuple):
    """How a text is laid out: `indent` per level (None: on one line), and its separators."""

    indent: str | None
    newline: str
    comma: str
    colon: str
    ascii_only: bool


class _Member(NamedTuple):
    lead: str
    key: str
    key_text: str
    value_start: int
    value_end: int
    value: Any
    tail: str


def edit_json(text: str, new: dict[str, Any]) -> str:
    """`text`, changed so that it parses to `new`. Members come in the order of `new`.

    `text` must be one valid JSON object; raises ValueError otherwise.
    """
    start = _skip(text, 0)
    old, end = _DECODER.raw_decode(text, start)
    if not isinstance(old, dict) or text[end:].strip():
        raise ValueError("not one JSON object")
    return text[:start] + _edit(text, start, end, old, new, _style(text, start), "") + text[end:]


def _edit(text: str, start: int, end: int, old: Any, new: Any, style: Style, margin: str) -> str:
    """The text of `new` where text[start:end] said `old`; `margin` is the indentation of the line it stands on."""
    if _same(old, new):
        return text[start:end]
    if isinstance(old, dict) and isinstance(new, dict) and old:
        return _edit_object(text, start, end, new, style, margin)
    inline = isinstance(old, list) and old and "\n" not in text[start:end]
    return _serialise(new, style._replace(indent=None) if inline else style, margin)


def _edit_object(text: str, start: int, end: int, new: dict[str, Any], style: Style, margin: str) -> str:
    members, closing = _members(text, start, end)
    by_key = {member.key: member for member in members}
    lead = members[0].lead
    inner = lead.rpartition("\n")[2] if "\n" in lead else margin
    added_lead = members[1].lead if len(members) > 1 else lead
    if "\n" not in lead:
        style = style._replace(indent=None)
    parts: list[str] = []
    for key, value in new.items():
        member = by_key.get(key)
        if member is None:
            opening = added_lead if parts or "\n" in lead else lead
            parts.append(opening + json.dumps(key, ensure_ascii=style.ascii_only) + style.colon)
            parts[-1] += _serialise(value, style, inner)
            continue
        edited = _edit(text, member.value_start, member.value_end, member.value, value, style, inner)
        parts.append(member.lead + member.key_text + edited + member.tail)
    return "{" + ",".join(parts) + closing + "}" if parts else "{}"


def _members(text: str, start: int, end: int) -> tuple[list[_Member], str]:
    """The members of the non-empty object text[start:end], and the blanks before its closing brace."""
    members: list[_Member] = []
    position = start + 1
    while True:
        key_start = _skip(text, position)
        key, key_end = scanstring(text, key_start + 1)
        value_start = _skip(text, _skip(text, key_end) + 1)
        value, value_end = _DECODER.raw_decode(text, value_start)
        stop = _skip(text, value_end)
        tail = text[value_end:stop]
        last = text[stop] == "}"
        key_text = text[key_start:value_start]
        members.append(
            _Member(text[position:key_start], key, key_text, value_start, value_end, value, "" if last else tail)
        )
        if last:
            return members, tail
        position = stop + 1


def _serialise(value: Any, style: Style, margin: str) -> str:
    text = json.dumps(
        value,
        indent=style.indent,
        ensure_ascii=style.ascii_only,
        separators=(style.comma if style.indent is None else ",", style.colon),
        allow_nan=False,
    )
    return text.replace("\n", style.newline + margin)


def _style(text: str, start: int) -> Style:
    """The layout of the object at `start`, read off its first member."""
    newline = "\r\n" if "\r\n" in text else "\n"
    ascii_only = text.isascii()
    lead_end = _skip(text, start + 1)
    lead = text[start + 1 : lead_end]
    indent = lead.rpartition("\n")[2] if "\n" in lead else None
    if text[lead_end] == "}":
        return Style("  ", newline, ", ", ": ", ascii_only)
    _, key_end = scanstring(text, lead_end + 1)
    colon = text[key_end : _skip(text, _skip(text, key_end) + 1)]
    _, value_end = _DECODER.raw_decode(text, key_end + len(colon))
    after = re.compile(r"[ \t\r\n]*,([ \t]*)").match(text, value_end)
    comma = "," + (after[1] if after and indent is None else " ")
    return Style(indent, newline, comma, colon if "\n" not in colon else ": ", ascii_only)


def _same(old: Any, new: Any) -> bool:
    """Equality as JSON sees it: true is not 1, order of members does not matter except where it shows."""
    if isinstance(old, dict) and isinstance(new, dict):
        return list(old) == list(new) and all(_same(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)


def _skip(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position
