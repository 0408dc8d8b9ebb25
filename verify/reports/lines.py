"""On which line of a JSON text a member stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]  # the typeshed stub lacks it

_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")
_PART = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|([^.\[\]]+)')


def parts_of(path: str) -> list[str]:
    """`config_groups.group_0.targets[1]` as its keys and numbers."""
    return [next(group for group in match.groups() if group is not None) for match in _PART.finditer(path)]


def line_of(text: str, path: Sequence[str]) -> int:
    """The line, counted from 1, of the member that `path` leads to, or of the last one that there is on the way.

    `text` must be valid JSON.
    """
    place = start = _skip(text, 0)
    for part in path:
        child = next((child for child in _children(text, start) if child[0] == part), None)
        if child is None:
            break
        _, place, start = child
    return text.count("\n", 0, place) + 1


def line_of_key(text: str, key: str) -> int | None:
    """The line on which `key` stands as a key; None if it does not. For keys that occur once, in long texts."""
    for spelling in dict.fromkeys((json.dumps(key), json.dumps(key, ensure_ascii=False))):
        match = re.search(re.escape(spelling) + r"\s*:", text)
        if match:
            return text.count("\n", 0, match.start()) + 1
    return None


def _children(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """(key or number, where it stands, where its value begins) of each member of the object or list at `start`."""
    if text[start] not in "{[" or text[_skip(text, start + 1)] in "}]":
        return
    keyed, position, number = text[start] == "{", start, 0
    while text[position] not in "}]":
        place = value = _skip(text, position + 1)
        name = str(number)
        if keyed:
            name, end = scanstring(text, place + 1)
            value = _skip(text, _skip(text, end) + 1)
        yield name, place, value
        position = _skip(text, _DECODER.raw_decode(text, value)[1])
        number += 1


def _skip(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position
