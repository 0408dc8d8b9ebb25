"""Names that differ in digits only, and the expressions that cannot tell them apart."""

from __future__ import annotations

import re

_ONE_DIGIT = str.maketrans("123456789", "000000000")
_ANY_DIGIT = re.compile(r"(?<!\\)\[\^?0-9\]")
_TELLING = re.compile(r"[0-9]|\\N|\(\?P=")
"""What a regex needs to tell digits apart: a digit in its text (literals, ranges, escapes, counts, references by
number), a character by its name, or a reference to what was matched before."""


def alike(name: str) -> str:
    """`name` with one digit for all: equal for names that differ in digits only."""
    return name.translate(_ONE_DIGIT)


def is_digit_blind(pattern: str) -> bool:
    """Does the regex treat every digit alike, so that only the length of a number can matter to it?"""
    return _TELLING.search(_ANY_DIGIT.sub("", pattern)) is None
