"""Another JSON document of one that is nearly right: random bytes seldom come past a parser, changed values do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any

NUMBERS = (0, 1, -1, 2, 3, 4, 8, 127, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, 1.0)
TEXTS = (
    "",
    "a",
    "re:",
    "re:.*",
    "re:(a+)+$",
    "Linear",
    "lm_head",
    "__metadata__",
    "../x",
    "\ud800",
    "\x1b[2J",
    "0",
    "F32",
    "int",
)
OTHERS = ("null", "true", "false", "[]", "{}", "[[]]", '{"": null}')
RAW = (
    "1e9999",
    "NaN",
    "-0",
    "0" * 30,
    "9" * 5000,
    "9" * 4300,
    "9" * 100,
    '"\\ud800"',
    "[" * 200 + "]" * 200,
    '{"a":1,"a":2}',
)
"""Spellings that no value has: they are put into the text where a value stood."""

_HOLE = "@hole@"


def mutate_json(data: bytes, random: Random) -> bytes:
    """`data`, if it is JSON, with one to four of its values replaced, removed, added or spelled oddly."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    raw: list[str] = []
    for _ in range(random.randint(1, 4)):
        document = _changed(document, random, raw)
    try:
        text = json.dumps(document, ensure_ascii=random.random() < 0.5, **_style(random))
    except (ValueError, RecursionError):
        return data
    for spelling in raw:
        text = text.replace(f'"{_HOLE}"', spelling, 1)
    return text.encode("utf-8", "surrogatepass")


def _changed(document: Any, random: Random, raw: list[str]) -> Any:
    path = random.choice(list(_paths(document)))
    if not path:
        return _value(random, raw) if random.random() < 0.05 else document
    *way, last = path
    owner = document
    for key in way:
        owner = owner[key]
    match random.randrange(6):
        case 0:
            del owner[last]
        case 1 if isinstance(owner, dict):
            owner[random.choice(TEXTS)] = deepcopy(owner[last])
        case 2 if isinstance(owner, dict):
            owner[random.choice(TEXTS)] = _value(random, raw)
        case 3 if isinstance(owner[last], int) and not isinstance(owner[last], bool):
            owner[last] += random.choice((-8, -4, -1, 1, 4, 8))
        case 4 if isinstance(owner, list):
            owner.insert(last, _value(random, raw))
        case _:
            owner[last] = _value(random, raw)
    return document


def _value(random: Random, raw: list[str]) -> Any:
    match random.randrange(8):
        case 0 | 1 | 2:
            return random.choice(NUMBERS)
        case 3 | 4:
            return random.choice(TEXTS)
        case 5:
            raw.append(random.choice(RAW))
            return _HOLE
        case 6:
            return [random.choice(NUMBERS) for _ in range(random.randrange(4))]
        case _:
            return json.loads(random.choice(OTHERS))


def _paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value, those deep inside left out: what is mutated again and again grows."""
    yield path
    if len(path) > 20:
        return
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield from _paths(value, (*path, key))


def _style(random: Random) -> dict[str, Any]:
    return random.choice(({}, {"indent": 2}, {"separators": (",", ":")}, {"indent": "\t"}))
