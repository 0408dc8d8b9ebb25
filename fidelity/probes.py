"""Does a reply have the form that was asked for? Each probe is a rule over its text, decided without judgement."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

FENCE = re.compile(r"^[ ]{0,3}```[ \t]*([\w+#.-]*)[^\n`]*\n(.*?)^[ ]{0,3}```[ \t]*$", re.MULTILINE | re.DOTALL)
OPENING = re.compile(r"[ ]{0,3}```[ \t]*([\w+#.-]*)[^\n`]*")
CLOSING = re.compile(r"[ ]{0,3}```[ \t]*")
ITEM = re.compile(r"^[ \t]*(?:[-*+•‣–]|\d{1,3}[.)])[ \t]+\S")  # noqa: RUF001
ONE_WORD = re.compile(r"[\"'“‘«*_`(]*[^\W_]+(?:[-'’][^\W_]+)*[\"'”’»*_`).!?。！？]*")  # noqa: RUF001
WORD = re.compile(r"[^\W\d_]+(?:['’](?=\w))?")  # noqa: RUF001
FEWEST_KNOWN_WORDS = 2

Asked = Mapping[str, Any]


def passes(text: str, asked: Asked) -> bool:
    """Does `text` have the form `asked`, as `{"probe": "items", "count": 5}`? KeyError for a probe there is not."""
    return PROBES[asked["probe"]](text.strip(), asked)


def _is_json(text: str, asked: Asked) -> bool:
    """JSON and nothing else, if in one code fence; an object with all of `keys` where those are given."""
    fence = FENCE.fullmatch(text)
    try:
        value = json.loads(fence[2] if fence else text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    keys = asked.get("keys")
    return keys is None or (isinstance(value, dict) and set(keys) <= set(value))


def _has_items(text: str, asked: Asked) -> bool:
    """Exactly `count` lines that begin with a bullet or a number."""
    return sum(ITEM.match(line) is not None for line in text.splitlines()) == int(asked["count"])


def _is_one_word(text: str, asked: Asked) -> bool:
    """One word, with a hyphen or an apostrophe in it perhaps; quotes and a full stop around it are let pass."""
    return ONE_WORD.fullmatch(text) is not None


def _has_code(text: str, asked: Asked) -> bool:
    """A fenced block that is closed and not blank; marked as `language` where that is given."""
    language = asked.get("language")
    return any(full and (language is None or mark.lower() == language.lower()) for mark, full in _blocks(text))


def _blocks(text: str) -> Iterator[tuple[str, bool]]:
    """Each fenced block that is closed: its language, and whether it is not blank. Looks at each line once."""
    mark, full = None, False
    for line in text.split("\n"):
        if mark is None:
            begun = OPENING.fullmatch(line)
            mark, full = (begun[1], False) if begun else (None, False)
        elif CLOSING.fullmatch(line):
            yield mark, full
            mark = None
        else:
            full = full or bool(line.strip())


def _is_language(text: str, asked: Asked) -> bool:
    """Written in `language`: by its script where that tells, else by more of its small words than of any other's."""
    language = asked["language"]
    script = _languages()["scripts"].get(language)
    if script is not None:
        letters = [letter for letter in text if letter.isalpha()]
        return bool(letters) and 2 * len(re.findall(f"[{script}]", "".join(letters))) > len(letters)
    found = [word.lower().replace("’", "'") for word in WORD.findall(text)]  # noqa: RUF001
    counts = {name: sum(word in known for word in found) for name, known in _small_words().items()}
    own = counts.pop(language)
    return own >= FEWEST_KNOWN_WORDS and own > max(counts.values())


def languages() -> tuple[str, ...]:
    """The languages that the probe `language` knows."""
    return tuple(sorted([*_languages()["scripts"], *_languages()["words"]]))


@lru_cache(maxsize=1)
def _languages() -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = json.loads((files("fidelity") / "languages.json").read_text(encoding="utf-8"))
    return table


@lru_cache(maxsize=1)
def _small_words() -> dict[str, frozenset[str]]:
    return {name: frozenset(words.split()) for name, words in _languages()["words"].items()}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


PROBES: Mapping[str, Callable[[str, Asked], bool]] = {
    "json": _is_json,
    "items": _has_items,
    "one_word": _is_one_word,
    "code_fence": _has_code,
    "language": _is_language,
}
"""Every probe by its name."""
