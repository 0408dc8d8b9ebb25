"""Targets and ignore entries, with the meaning compressed-tensors gives them.

`re:PATTERN` is `re.match` on the module name: anchored at the start, not at the end. Anything else is the module's
whole name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from checkpoint.errors import Problem
from checkpoint.matching import KnownSlow, Matcher, expression
from checkpoint.matching.digits import alike, is_digit_blind

PREFIX = "re:"


@lru_cache(maxsize=4096)
def compiled(entry: str) -> Matcher | None:
    """The regular expression of an entry, or None for a literal. Raises re.error.

    Whoever holds it against names may be told that it takes too long (PatternTooSlow).
    """
    return expression(entry.removeprefix(PREFIX)) if entry.startswith(PREFIX) else None


def matches(entry: str, name: str) -> bool:
    """Does `entry` cover the module `name`?"""
    pattern = compiled(entry)
    return name == entry if pattern is None else bool(pattern.match(name))


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
        self._blind: list[tuple[int, Matcher]] = []
        self._sighted: list[tuple[int, Matcher]] = []
        self._known: dict[str, int] = {}
        for number, entry in enumerate(self._entries):
            pattern = compiled(entry)
            if pattern is None:
                self._literal[entry] = number
            else:
                (self._blind if is_digit_blind(pattern.pattern) else self._sighted).append((number, pattern))

    def first(self, name: str) -> str | None:
        """The first entry that covers `name`."""
        key = alike(name)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _first(self._blind, name, len(self._entries))
        if self._sighted:
            found = min(found, _first(self._sighted, name, len(self._entries)))
        found = min(found, self._literal.get(name, found))
        return self._entries[found] if found < len(self._entries) else None


def _first(patterns: Iterable[tuple[int, Matcher]], name: str, none: int) -> int:
    return next((number for number, pattern in patterns if pattern.match(name)), none)


def pattern_problems(entries: Iterable[str], file: str | None = None) -> list[Problem]:
    """One problem for each entry that is no regular expression, or none that can be held against names."""
    problems = []
    for entry in entries:
        try:
            compiled(entry)
        except KnownSlow as error:
            problems.append(Problem("pattern-slow", f"{entry!r} {error}", file))
        except re.error as error:
            problems.append(Problem("pattern-invalid", f"{entry!r} is no regular expression: {error}", file))
    return problems
