"""Targets and ignore entries, with the meaning compressed-tensors gives them.

`re:PATTERN` is `re.match` on the module name: anchored at the start, not at the end. Anything else is the module's
whole name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from checkpoint.errors import Problem

PREFIX = "re:"

_ONE_DIGIT = str.maketrans("123456789", "000000000")
_ANY_DIGIT = re.compile(r"(?<!\\)\[\^?0-9\]")
_TELLING = re.compile(r"[0-9]|\\N|\(\?P=")
"""What a regex needs to tell digits apart: a digit in its text (literals, ranges, escapes, counts, references by
number), a character by its name, or a reference to what was matched before."""


@lru_cache(maxsize=4096)
def compiled(entry: str) -> re.Pattern[str] | None:
    """The regular expression of an entry, or None for a literal. Raises re.error."""
    if not entry.startswith(PREFIX):
        return None
    try:
        return re.compile(entry.removeprefix(PREFIX))
    except (OverflowError, RecursionError) as error:  # a repetition or a nesting beyond what `re` can hold
        raise re.error(str(error)) from error


def matches(entry: str, name: str) -> bool:
    """Does `entry` cover the module `name`?"""
    pattern = compiled(entry)
    return name == entry if pattern is None else pattern.match(name) is not None


def first_match(entries: Iterable[str], name: str) -> str | None:
    """The first entry that covers `name`."""
    return next((entry for entry in entries if matches(entry, name)), None)


class Patterns:
    """Valid entries, to be held against many names.

    What a digit-blind pattern says of a name it says of every name that differs in digits only, and it is asked once:
    layers and experts make 30,000 names of a few dozen.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = list(dict.fromkeys(entries))
        self._literal: dict[str, int] = {}
        self._blind: list[tuple[int, re.Pattern[str]]] = []
        self._sighted: list[tuple[int, re.Pattern[str]]] = []
        self._known: dict[str, int] = {}
        for number, entry in enumerate(self._entries):
            pattern = compiled(entry)
            if pattern is None:
                self._literal[entry] = number
            else:
                (self._blind if is_digit_blind(pattern.pattern) else self._sighted).append((number, pattern))

    def first(self, name: str) -> str | None:
        """The first entry that covers `name`."""
        alike = name.translate(_ONE_DIGIT)
        found = self._known.get(alike)
        if found is None:
            found = self._known[alike] = _first(self._blind, name, len(self._entries))
        if self._sighted:
            found = min(found, _first(self._sighted, name, len(self._entries)))
        found = min(found, self._literal.get(name, found))
        return self._entries[found] if found < len(self._entries) else None


def _first(patterns: Iterable[tuple[int, re.Pattern[str]]], name: str, none: int) -> int:
    return next((number for number, pattern in patterns if pattern.match(name)), none)


def is_digit_blind(pattern: str) -> bool:
    """Does the regex treat every digit alike, so that only the length of a number can matter to it?"""
    return _TELLING.search(_ANY_DIGIT.sub("", pattern)) is None


def pattern_problems(entries: Iterable[str], file: str | None = None) -> list[Problem]:
    """One problem for each entry that is no valid regular expression."""
    problems = []
    for entry in entries:
        try:
            compiled(entry)
        except re.error as error:
            problems.append(Problem("pattern-invalid", f"{entry!r} is no regular expression: {error}", file))
    return problems
