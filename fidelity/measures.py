"""What can be told of a reply by its text. Words are runs of letters and digits; every other sign stands alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

WORD = re.compile(r"[^\W_]+|[^\s]|_", re.UNICODE)
SENTENCE_END = re.compile(r"[.!?]+[\"')\]»”’]*(?=\s|$)|[。！？]+|\n")  # noqa: RUF001
LIST_MARK = re.compile(r"\s*(?:\d{1,3}|[A-Za-z])\.")

LOOP_REPEATS = 3
LOOP_WORDS = 12
LONGEST_PERIOD = 100


def words(text: str) -> list[str]:
    """`It's 3.` is `It`, `'`, `s`, `3`, `.`."""
    return WORD.findall(text)


def is_empty(text: str) -> bool:
    return not text.strip()


def is_same(one: str, other: str) -> bool:
    """The same text, but for white space around it."""
    return one.strip() == other.strip()


def first_sentence(text: str) -> str:
    """Up to the first full stop, exclamation or question mark before white space, or to the end of the first line.

    A list's number (`1.`) ends no sentence. Runs of white space are one blank.
    """
    text = text.strip()
    for end in SENTENCE_END.finditer(text):
        if not LIST_MARK.fullmatch(text[: end.end()]):
            return " ".join(text[: end.end()].split())
    return " ".join(text.split())


def common_prefix(one: Sequence[object], other: Sequence[object]) -> int | None:
    """Where two sequences differ first, counted from 0; None if they are equal. One that is the other's beginning
    differs from it where it ends."""
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def distinct_2(text: str) -> float | None:
    """Different pairs of neighbouring words as a part of all pairs, upper and lower case alike; None below two words.

    After Li et al. 2016 (arXiv:1510.03055), who divide by words rather than pairs.
    """
    found = words(text.lower())
    pairs = list(pairwise(found))
    return len(set(pairs)) / len(pairs) if pairs else None


def loops(text: str) -> bool:
    """Does the reply end in a repetition: at least three times the same words in a row, twelve words or more together?

    The last repetition may be cut off anywhere. Repetitions of up to 100 words are found. Upper and lower case differ.
    """
    found = words(text)
    return any(
        _tail(found, period) >= max(LOOP_REPEATS * period, LOOP_WORDS)
        for period in range(1, min(LONGEST_PERIOD, len(found) // LOOP_REPEATS) + 1)
    )


def _tail(found: Sequence[str], period: int) -> int:
    """How many of the last words repeat those `period` before them, with the first period itself."""
    length = period
    while length < len(found) and found[-length - 1] == found[-length - 1 + period]:
        length += 1
    return length
