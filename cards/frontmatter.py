"""The YAML between `---` lines at the top of a card: read, and keys added to it as text.

The Hub takes for front matter what stands between a first line `---` and the next. It is never written anew: order,
comments and formatting are people's. Lines are added after theirs, and the result must say the same and what was added.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cards.markers import BOM, README
from checkpoint import Problem, Refused

MAX_FRONT = 256 * 1024
"""Characters; front matter is a page."""

Value = str | Sequence[str]

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_PLAIN = re.compile(r"[A-Za-z][\w./+:-]*", re.ASCII)


@dataclass(frozen=True)
class FrontMatter:
    """`head` (what comes before the YAML, the first `---` included) + `yaml` + `rest` is the text it was read from.

    `head` is empty where there is no front matter. `values` is what the YAML says.
    """

    head: str
    yaml: str
    rest: str
    values: Mapping[str, Any]

    @property
    def text(self) -> str:
        return self.head + self.yaml + self.rest


def read_front(text: str) -> FrontMatter:
    """The front matter of a file's `text`. Raises Refused, with the line, where it is malformed."""
    lines = list(_LINE.finditer(text, 1 if text.startswith(BOM) else 0))
    start = next((number for number, line in enumerate(lines) if line[0].strip()), None)
    if start is None or lines[start][0].rstrip() != "---":
        return FrontMatter("", "", text, {})
    if lines[start][0].rstrip("\r\n") != "---":
        raise Refused(_problem(start + 1, "blanks after ---, which the Hub does not take for front matter"))
    close = next((n for n, line in enumerate(lines) if n > start and line[0].rstrip("\r\n") == "---"), None)
    if close is None:
        raise Refused(_problem(start + 1, "front matter opens here and is not closed", "a line --- after it"))
    begin, end = lines[start].end(), lines[close].start()
    yaml = text[begin:end]
    return FrontMatter(text[:begin], yaml, text[end:], _values(yaml, start + 1))


def with_keys(front: FrontMatter, added: Mapping[str, Value], newline: str) -> FrontMatter:
    """`front` with lines for the keys `added`, which it must not have. Raises Refused where lines cannot be added."""
    if not added:
        return front
    lines = [line for key, value in added.items() for line in _written(key, value)]
    block = "".join(line + newline for line in lines)
    if not front.head:
        bom = BOM if front.rest.startswith(BOM) else ""
        rest = front.rest.removeprefix(BOM)
        closing = f"---{newline}" + (newline if rest else "")
        return FrontMatter(f"{bom}---{newline}", block, closing + rest, dict(added))
    first_line = len(_LINE.findall(front.head))
    refusal = Refused(_problem(first_line, "front matter to which no line can be added", "a key: value on each line"))
    try:
        values = _values(front.yaml + block, first_line)
    except Refused as error:
        raise refusal from error
    if list(values) != [*front.values, *added] or any(values[key] != _listed(value) for key, value in added.items()):
        raise refusal
    return FrontMatter(front.head, front.yaml + block, front.rest, values)


def _values(yaml_text: str, line: int) -> dict[str, Any]:
    """What the YAML says, a map or nothing. `line` is that of the `---` before it."""
    import yaml

    from checkpoint.plain_yaml import ShortNumbers

    if len(yaml_text) > MAX_FRONT:
        raise Refused(_problem(line, f"front matter of over {MAX_FRONT:,} characters"))
    try:
        root = yaml.compose(yaml_text, ShortNumbers)
        if root is None:
            return {}
        if not isinstance(root, yaml.MappingNode):
            raise Refused(_problem(line + 1, "front matter is no map of keys"))
        _refuse_repeated(root, line)
        values = yaml.load(yaml_text, ShortNumbers)
    except yaml.MarkedYAMLError as error:
        place = line + (error.problem_mark.line + 1 if error.problem_mark else 1)
        raise Refused(_problem(place, f"not YAML: {error.problem}")) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Refused(_problem(line + 1, f"not YAML: {' '.join(str(error).split())}")) from error
    return {str(key): value for key, value in values.items()}


def _refuse_repeated(root: Any, line: int) -> None:
    seen: set[Any] = set()
    for key, _ in root.value:
        if not isinstance(key.value, str):
            raise Refused(_problem(line + key.start_mark.line + 1, "a key that is no text"))
        if key.value in seen:
            raise Refused(_problem(line + key.start_mark.line + 1, f"the key {key.value!r} twice"))
        seen.add(key.value)


def _written(key: str, value: Value) -> list[str]:
    if isinstance(value, str):
        return [f"{key}: {_scalar(value)}"]
    return [f"{key}:", *(f"- {_scalar(one)}" for one in value)]


def _scalar(value: str) -> str:
    """`value` plain where YAML reads it back as that text, else in double quotes, which are JSON's."""
    import yaml

    if _PLAIN.fullmatch(value) and not value.endswith(":") and yaml.safe_load(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _listed(value: Value) -> str | list[str]:
    return value if isinstance(value, str) else list(value)


def _problem(line: int, found: str, expected: str = "") -> Problem:
    return Problem("card-front-matter", f"line {line}: {found}", README, expected=expected)
