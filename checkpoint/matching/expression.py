"""A regular expression that nobody vouches for, with a bound on the time that it may take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from time import perf_counter
from typing import Protocol

from checkpoint.errors import CkptError, Problem, brief
from checkpoint.matching.apart import Slow, apart
from checkpoint.matching.cost import Ways, ways
from checkpoint.matching.digits import alike, is_digit_blind

SECONDS = 2.0
"""Of processor time that one expression may take for all names together."""

SECONDS_IN_ALL = 60.0
"""Of all expressions since `start_over`."""

STEP = 0.05
"""Seconds of an expression that need not be counted at once."""

PLAIN = 64
"""Ways for each character of a name, up to which an expression needs no watching."""

STEPS = 2e7
"""Ways up to which one match may be asked in this process: a quarter of a second, since none can be interrupted."""

LONG = 96
"""Characters of a name; longer ones are asked apart, as the bound holds for no more."""

LONG_PATTERN = 2_000
"""Characters of a pattern; longer ones are not even parsed here."""

LONGEST_PATTERN = 1 << 16
"""Characters beyond which a pattern is none."""

MOST_KNOWN = 1 << 17
"""Answers that an expression asked apart keeps."""


class Matcher(Protocol):
    """What can be held against the start of a name."""

    @property
    def pattern(self) -> str:
        """Its text."""

    def match(self, name: str, /) -> object:
        """None, or false, where it does not match."""


class PatternTooSlow(CkptError):
    """A regular expression that takes too long: from now on it counts as none."""

    headline = "a regular expression takes too long"

    def __init__(self, pattern: str) -> None:
        found = f"{brief(pattern)} takes longer than {SECONDS:.0f} s to be held against the names"
        remedy = "Take repeats out of repeats, as in (a+)+, or name the modules themselves"
        super().__init__(Problem("pattern-slow", found, remedy=remedy))
        self.pattern = pattern


class KnownSlow(re.error):
    """What was found to take too long counts as no regular expression."""


def expression(pattern: str) -> Matcher:
    """`pattern`, compiled. Raises re.error for what is none, or what was found to be too slow."""
    if pattern in _slow:
        raise KnownSlow(f"takes longer than {SECONDS:.0f} s to be held against the names")
    if len(pattern) > LONGEST_PATTERN:
        raise re.error(f"it has {len(pattern):,} characters, more than {LONGEST_PATTERN:,}")
    try:
        bound = ways(pattern) if len(pattern) <= LONG_PATTERN else Ways(inf, 0)
        if bound.free <= 1 and bound.fixed <= PLAIN:
            return re.compile(pattern)
        return Watched(pattern, bounded=bound.at(LONG) <= STEPS)
    except (OverflowError, RecursionError) as error:  # a repetition or a nesting beyond what `re` can hold
        raise re.error(str(error)) from error


def start_over() -> None:
    """From here on, expressions have their time in all anew. What was too slow still is."""
    _Spent.seconds = 0.0


class _Spent:
    """Seconds that went into expressions which are watched."""

    seconds = 0.0


_slow: set[str] = set()


class Watched:
    """An expression whose time is counted: asked here, where one match can take no longer than a moment, else apart."""

    def __init__(self, pattern: str, *, bounded: bool) -> None:
        """Raises re.error."""
        self.pattern = pattern
        self._spent = self._told = 0.0
        self._limit = STEP
        self._blind = is_digit_blind(pattern)
        self._known: dict[str, bool] = {}
        self._match = re.compile(pattern).match if bounded else None
        if not bounded:
            self._asked(())

    def match(self, name: str, /) -> bool:
        """Raises PatternTooSlow."""
        if self._match is None or len(name) > LONG:
            return self._match_apart(name)
        begun = perf_counter()
        found = self._match(name) is not None
        self._spent += perf_counter() - begun
        if self._spent > self._limit:
            self._tell()
        return found

    def _match_apart(self, name: str) -> bool:
        key = alike(name) if self._blind else name
        found = self._known.get(key)
        if found is None:
            (found,) = self._asked((name,))
            if len(self._known) < MOST_KNOWN:
                self._known[key] = found
        return found

    def _asked(self, names: Sequence[str]) -> list[bool]:
        if self.pattern in _slow:
            raise PatternTooSlow(self.pattern)
        try:
            found, seconds = apart().match(self.pattern, names, SECONDS)
        except Slow as error:
            raise self._given_up() from error
        self._spent += seconds
        self._tell()
        return found

    def _tell(self) -> None:
        """Count what was not yet counted. Raises PatternTooSlow where no time is left."""
        _Spent.seconds += self._spent - self._told
        self._told, self._limit = self._spent, self._spent + STEP
        if self._spent > SECONDS or _Spent.seconds > SECONDS_IN_ALL or self.pattern in _slow:
            raise self._given_up()

    def _given_up(self) -> PatternTooSlow:
        _slow.add(self.pattern)
        self._limit = 0.0
        return PatternTooSlow(self.pattern)
