r"""An upper bound for the steps that `re` takes to match a pattern at the start of a text, from the pattern alone.

A backtracking matcher tries the ways in which the parts of a pattern can share a text out between them. The bound
counts these: a part that may take any number of characters can end at each, k such parts after one another in
C(n + k, k) ways, alternatives add up, and what is repeated with several ways each time has no bound worth the name.
What stands between two characters that it cannot take itself, as `\d+` in `\.\d+\.`, ends in one place alone.
Source: `Modules/_sre/sre_lib.h`; the parse is that of `re` itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from math import comb, inf
from re import _constants as sre  # type: ignore[attr-defined]  # not in the typeshed stubs
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

_SINGLE = frozenset({sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN, sre.CATEGORY, sre.RANGE, sre.AT})
_REPEATS = frozenset({sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT})

_FLAGS = re.compile(r"\(\?[aiLmsux-]")
_CATEGORIES: Mapping[Any, Callable[[str], bool]] = {
    sre.CATEGORY_DIGIT: str.isdecimal,
    sre.CATEGORY_WORD: lambda character: character.isalnum() or character == "_",
    sre.CATEGORY_SPACE: str.isspace,
}

WIDE = 1 << 12
"""Characters of a range from which `re` takes long to compile it where case is ignored."""


MOST_UNROLLED = 32
"""Times up to which a repeat of something that has several ways is counted out."""


class Ways(NamedTuple):
    """`fixed` ways, times those in which `free` parts of any length share the text."""

    fixed: float
    free: int

    def at(self, length: int) -> float:
        """How many for a text of `length` characters."""
        return self.fixed * comb(length + self.free, self.free)


def ways(pattern: str) -> Ways:
    """Those of a whole pattern, beyond which nothing is to match. Raises re.error, RecursionError, OverflowError."""
    parsed = parser.parse(pattern)
    if parsed.state.flags & re.IGNORECASE and _is_wide(parsed):
        return Ways(inf, 0)
    parts = list(parsed)
    plain = not _FLAGS.search(pattern)
    if parts and parts[-1][0] in (sre.MAX_REPEAT, sre.MIN_REPEAT) and _is_single(parts[-1][1][2]):
        parts.pop()  # the end of it, wherever it ends, is the end of the search
    return _sequence(parts, plain=plain)


def _sequence(parts: Iterable[tuple[Any, Any]], *, plain: bool = False) -> Ways:
    """Parts after one another; `plain` ones mean what they say, whatever flags there are."""
    found = list(parts)
    fixed, free = 1.0, 0
    for number, (kind, value) in enumerate(found):
        part = _part(kind, value)
        if part.free and plain and 0 < number < len(found) - 1 and _is_enclosed(*found[number - 1 : number + 2]):
            continue
        fixed, free = fixed * part.fixed, free + part.free
    return Ways(fixed, free)


def _is_enclosed(before: tuple[Any, Any], part: tuple[Any, Any], behind: tuple[Any, Any]) -> bool:
    """Is `part` a repeat of single characters, none of them the one before it or the one behind it?

    However many places it may begin at, what it looks at from each is looked at from no other.
    """
    if part[0] not in (sre.MAX_REPEAT, sre.MIN_REPEAT) or not _is_single(part[1][2]):
        return False
    return all(side[0] is sre.LITERAL and _takes(part[1][2][0], side[1]) is False for side in (before, behind))


def _takes(part: tuple[Any, Any], code: int) -> bool | None:
    """Does a set of characters hold the one with this code? None where that is not known."""
    kind, value = part
    if kind is sre.LITERAL:
        return bool(value == code)
    if kind is sre.RANGE:
        return bool(value[0] <= code <= value[1])
    if kind is sre.CATEGORY and value in _CATEGORIES and code < 128:
        return _CATEGORIES[value](chr(code))
    if kind is sre.IN and value[0][0] is not sre.NEGATE:
        answers = [_takes(one, code) for one in value]
        return None if None in answers else any(answers)
    return None


def _part(kind: Any, value: Any) -> Ways:
    if kind in _SINGLE or kind is sre.FAILURE:
        return Ways(1, 0)
    if kind is sre.GROUPREF:
        return Ways(1, 1)  # one way, of as many steps as it has characters
    if kind in _REPEATS:
        return _repeat(*value)
    if kind is sre.BRANCH:
        return _either(_sequence(one) for one in value[1])
    if kind is sre.SUBPATTERN:
        return _sequence(value[3])
    if kind is sre.ATOMIC_GROUP:
        return _sequence(value)
    if kind in (sre.ASSERT, sre.ASSERT_NOT):
        return _sequence(value[1])
    if kind is sre.GROUPREF_EXISTS:
        return _either(_sequence(one or ()) for one in value[1:])
    return Ways(inf, 0)


def _either(branches: Iterable[Ways]) -> Ways:
    """One of several; as their bounds depend on the text, the largest number of free parts stands for each."""
    found = list(branches)
    return Ways(sum(one.fixed for one in found), max((one.free for one in found), default=0))


def _repeat(least: int, most: int, body: Any) -> Ways:
    """`body` from `least` to `most` times. An empty one is repeated without taking a character of the text."""
    inner, (width, _) = _sequence(body), body.getwidth()
    if inner.free == 0 and inner.fixed == 1:
        if width == 0:
            return Ways(float(most if most is not sre.MAXREPEAT else least + 1), 0)
        times = most - least + 1
        return Ways(1, 1) if most is sre.MAXREPEAT or times > MOST_UNROLLED else Ways(times, 0)
    if most is sre.MAXREPEAT or most > MOST_UNROLLED:
        return Ways(inf, 0)
    return Ways(sum(inner.fixed**times for times in range(least, most + 1)), inner.free * most)


def _is_single(body: Any) -> bool:
    """Does it take one character, in one way?"""
    return len(body) == 1 and body[0][0] in _SINGLE and body[0][0] is not sre.AT


def _is_wide(parts: Any) -> bool:
    """Is there a range in it that is large?"""
    if isinstance(parts, tuple) and len(parts) == 2 and parts[0] is sre.RANGE:
        low, high = parts[1]
        return bool(high - low > WIDE)
    if isinstance(parts, (list, tuple, parser.SubPattern)):
        return any(_is_wide(part) for part in parts)
    return False
