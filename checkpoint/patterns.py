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


def pattern_problems(entries: Iterable[str], file: str | None = None) -> list[Problem]:
    """One problem for each entry that is no valid regular expression."""
    problems = []
    for entry in entries:
        try:
            compiled(entry)
        except re.error as error:
            problems.append(Problem("pattern-invalid", f"{entry!r} is no regular expression: {error}", file))
    return problems
