"""Scripts that texts are written in. A script is no language: Latin letters may be English or Polish."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

KNOWN = frozenset(
    (
        "ARABIC", "ARMENIAN", "BENGALI", "CYRILLIC", "DEVANAGARI", "ETHIOPIC", "GEORGIAN", "GREEK", "GUJARATI",
        "GURMUKHI", "HANGUL", "HEBREW", "KANNADA", "KHMER", "LAO", "LATIN", "MALAYALAM", "MONGOLIAN", "MYANMAR",
        "ORIYA", "SINHALA", "TAMIL", "TELUGU", "THAI", "TIBETAN",
    )
)  # fmt: skip
RENAMED = {"CJK": "Han", "HIRAGANA": "Kana", "KATAKANA": "Kana"}
OTHER = "other"


def letters_by_script(texts: Iterable[str]) -> Counter[str]:
    """Number of letters of each script: `Latin`, `Cyrillic`, `Han`, `Kana`, ..., or `other`."""
    characters: Counter[str] = Counter()
    for text in texts:
        characters.update(text)
    scripts: Counter[str] = Counter()
    for character, count in characters.items():
        if character.isalpha():
            scripts[_script(character)] += count
    return scripts


@lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    """By the first word of the letter's Unicode name that is a script's."""
    for word in re.split("[ -]", unicodedata.name(letter, "")):
        if word in RENAMED:
            return RENAMED[word]
        if word in KNOWN:
            return word.capitalize()
    return OTHER
