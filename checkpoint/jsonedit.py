"""Minimal edits to the text of a JSON object.

The text is walked beside the old and the new value. A member or element whose value did not change is copied as it
stands; one that did is replaced, in the indentation and separators of its neighbours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]  # the typeshed stub lacks it
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, NamedTuple

_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")
_BLANKS = frozenset(" \t\r\n")
_AFTER_COMMA = re.compile(r"[ \t\r\n]*,([ \t]*)")


class Style(NamedTuple):
    """How a text is laid out: `indent` per level (None: on one line), and its separators."""

    indent: str | None
    newline: str
    comma: str
    colon: str
    ascii_only: bool


class _Item(NamedTuple):
    """A member of an object, or an element of a list (`key` None): lead, key_text, value and tail make its text."""

    lead: str
    key: str | None
    key_text: str
    start: int
    end: int
    value: Any
    tail: str


class _Row(NamedTuple):
    """The items of a non-empty object or list, and the blanks before its closing bracket."""

    items: list[_Item]
    closing: str


def edit_json(text: str, new: dict[str, Any]) -> str:
    """`text`, changed so that it parses to `new`. Members come in the order of `new`.

    `text` must be one valid JSON object without repeated keys; raises ValueError otherwise.
    """
    start = _skip(text, 0)
    old, end = _DECODER.raw_decode(text, start)
    if not isinstance(old, dict) or text[end:].strip(" \t\r\n"):
        raise ValueError("not one JSON object")
    return text[:start] + _edit(text, start, end, old, new, _style(text, start), "") + text[end:]


def _edit(text: str, start: int, end: int, old: Any, new: Any, style: Style, margin: str) -> str:
    """The text of `new` where text[start:end] said `old`; `margin` is the indentation of the line it stands on."""
    if _same(old, new):
        return text[start:end]
    if old and new and isinstance(old, dict) and isinstance(new, dict):
        even = _evenly(text[start:end], old, new, style)
        if even is not None:
            return even
        row = _row(text, start, end)
        return "{" + _joined(text, row, list(_members(row, new)), style, margin) + "}"
    if old and new and isinstance(old, list) and isinstance(new, list):
        row = _row(text, start, end)
        return "[" + _joined(text, row, list(_elements(row, new)), style, margin) + "]"
    inline = bool(old) and isinstance(old, (dict, list)) and "\n" not in text[start:end]
    return _serialise(new, style._replace(indent=None) if inline else style, margin)


def _evenly(here: str, old: dict[str, Any], new: dict[str, Any], style: Style) -> str | None:
    """The text of `new` where `here` says `old`: for maps of strings, a member a line, all laid out alike.

    It is what an edit member by member gives, in a tenth of the time: an index has 100,000. None for anything else.
    """
    start = _skip(here, 1)
    lead, closing = here[1:start], here[len(here[:-1].rstrip(" \t\r\n")) : -1]
    if "\n" not in lead or set(map(type, (*old.values(), *new.values()))) != {str}:
        return None
    colon = _colon(here[start : _skip(here, _skip(here, scanstring(here, start + 1)[1]) + 1)])
    encode = encode_basestring_ascii if style.ascii_only else encode_basestring

    def told(value: dict[str, str]) -> str:
        lines = [encode(key) + colon + encode(text) for key, text in value.items()]
        return "{" + lead + ("," + lead).join(lines) + closing + "}"

    return told(new) if told(old) == here else None


def _members(row: _Row, new: dict[str, Any]) -> Iterator[tuple[_Item | None, str | None, Any]]:
    """(the old member whose text serves, key, value) of each member to be."""
    old = {item.key: item for item in row.items}
    for key, value in new.items():
        yield old.get(key), key, value


def _elements(row: _Row, new: list[Any]) -> Iterator[tuple[_Item | None, None, Any]]:
    """(the old element whose text serves, None, value) of each element to be.

    Lists of one length are taken to have changed in place, others to have gained, lost or moved whole elements.
    """
    if len(row.items) == len(new):
        yield from ((item, None, value) for item, value in zip(row.items, new, strict=True))
        return
    pool: dict[str, list[_Item]] = {}
    for item in reversed(row.items):
        pool.setdefault(json.dumps(item.value), []).append(item)
    for value in new:
        equal = pool.get(json.dumps(value))
        yield equal.pop() if equal else None, None, value


def _joined(
    text: str, row: _Row, parts: Sequence[tuple[_Item | None, str | None, Any]], style: Style, margin: str
) -> str:
    """What stands between the brackets."""
    items = row.items
    first = items[0].lead
    broken = "\n" in first
    follow = items[1].lead if len(items) > 1 else first if broken else style.comma[1:]
    inner = first.rpartition("\n")[2] if broken else margin
    if not broken:
        style = style._replace(indent=None)
    if items[0].key is not None:
        style = style._replace(colon=_colon(items[0].key_text))
    pieces: list[str] = []
    for number, (item, key, value) in enumerate(parts):
        lead = follow if number else first
        if item is None:
            named = "" if key is None else json.dumps(key, ensure_ascii=style.ascii_only) + style.colon
            pieces.append(lead + named + _serialise(value, style, inner))
            continue
        if (item is items[0]) == (number == 0):
            lead = item.lead
        tail = item.tail if number + 1 < len(parts) else ""
        edited = _edit(text, item.start, item.end, item.value, value, style, inner)
        pieces.append(lead + item.key_text + edited + tail)
    return ",".join(pieces) + row.closing


def _row(text: str, start: int, end: int) -> _Row:
    """Take the non-empty object or list text[start:end] apart."""
    keyed = text[start] == "{"
    items: list[_Item] = []
    position = start + 1
    while True:
        here = value_start = _skip(text, position)
        key = None
        if keyed:
            key, key_end = scanstring(text, here + 1)
            value_start = _skip(text, _skip(text, key_end) + 1)
        value, value_end = _DECODER.raw_decode(text, value_start)
        stop = _skip(text, value_end)
        blank, last = text[value_end:stop], stop + 1 == end
        lead, key_text = text[position:here], text[here:value_start]
        items.append(_Item(lead, key, key_text, value_start, value_end, value, "" if last else blank))
        if last:
            return _Row(items, blank)
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
    if text[lead_end] == "}":
        return Style("  ", newline, ", ", ": ", ascii_only)
    lead = text[start + 1 : lead_end]
    indent = lead.rpartition("\n")[2] if "\n" in lead else None
    _, key_end = scanstring(text, lead_end + 1)
    value_start = _skip(text, _skip(text, key_end) + 1)
    colon = _colon(text[lead_end:value_start])
    _, value_end = _DECODER.raw_decode(text, value_start)
    after = _AFTER_COMMA.match(text, value_end)
    # in a text of several lines, or of one member, the blank after a colon tells of the one after a comma
    comma = "," + (after[1] if after and indent is None else colon.partition(":")[2])
    return Style(indent, newline, comma, colon, ascii_only)


def _colon(key_text: str) -> str:
    """The colon behind a key, with its blanks."""
    colon = key_text[scanstring(key_text, 1)[1] :]
    return ": " if "\n" in colon else colon


def _same(old: Any, new: Any) -> bool:
    """Would `new` be written as `old` was? true is not 1, 1 is not 1.0, and the order of members shows."""
    if isinstance(old, dict) and isinstance(new, dict):
        if set(map(type, old.values())) == {str}:  # a string equals nothing but a string
            return old == new and list(old) == list(new)
        return list(old) == list(new) and all(_same(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(map(_same, old, new))
    return type(old) is type(new) and bool(old == new)


def _skip(text: str, position: int) -> int:
    """The first place from `position` on that is not blank."""
    if text[position : position + 1] not in _BLANKS:
        return position
    match = _BLANK.match(text, position)
    return match.end() if match else position
