"""Findings that a person let pass: for which rule, where, and why.

A waiver is consent to one known fault. So it names its rule, it covers no place that the report does not spell out, and
one that is of no use is told.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from checkpoint import CkptError, Problem
from checkpoint.errors import bounded
from checkpoint.wholefile import read_whole
from verify.finding import Finding
from verify.registry import RULES
from verify.rules import load_rules

MAX_WAIVERS = 1024 * 1024
"""Bytes; waivers are a page."""

_BRIEF = re.compile(r"([A-Z]\d{2})(?::(.+))?", re.DOTALL)
_UNSEEN = re.compile(r" and \d+ more$")


class BadWaiver(CkptError):
    """A waiver that names no rule, or gives no reason: a slip of the pen in it must not be taken for consent."""

    headline = "a waiver cannot be used"


@dataclass(frozen=True)
class Waiver:
    """Consent to what `rule` finds at `place`, everywhere where that is None.

    A place is what the report has, or a pattern (`*`, `?`, `[abc]`) that each name in it matches whole. `reason` is
    empty only where it was given in short, as `M01` or `X04:tokenizer_*.json`.
    """

    rule: str
    place: str | None = None
    reason: str = ""

    def __str__(self) -> str:
        return self.rule if self.place is None else f"{self.rule}:{self.place}"

    def covers(self, name: str) -> bool:
        """Is `name`, one of a finding's places, meant?"""
        return self.place is None or name == self.place or fnmatchcase(name, self.place)


def load_waivers(path: Path | str) -> tuple[Waiver, ...]:
    """The waivers of a YAML or JSON file. Raises BadWaiver with all that is wrong with it."""
    file = str(path)
    document = _document(Path(path), file)
    from schemas import validate

    faults = validate(document, "waivers")
    if faults:
        raise BadWaiver(bounded(Problem("waiver-invalid", fault.message, file, fault.path or None) for fault in faults))
    found = tuple(Waiver(entry["rule"], entry.get("place"), entry["reason"]) for entry in document["waivers"])
    problems = [
        Problem("waiver-unknown", f"{waiver.rule!r} names no rule", file, f"waivers[{number}].rule")
        for number, waiver in enumerate(found)
        if not _is_rule(waiver.rule)
    ]
    if problems:
        raise BadWaiver(problems)
    return found


def accepted(waivers: Iterable[str | Waiver]) -> tuple[Waiver, ...]:
    """The waivers, those in short read. Raises BadWaiver for each that names no rule."""
    found, problems = [], []
    for given in waivers:
        waiver = _read(given) if isinstance(given, str) else given
        if waiver is not None and _is_rule(waiver.rule):
            found.append(waiver)
        else:
            named = f"{given!r}" if isinstance(given, str) else f"{given.rule!r}"
            problems.append(Problem("waiver-unknown", f"{named} names no rule", expected="RULE or RULE:PLACE"))
    if problems:
        raise BadWaiver(problems)
    return tuple(found)


def waivers_for(finding: Finding, waivers: Sequence[Waiver]) -> tuple[Waiver, ...]:
    """The waivers that together cover every place of `finding`; none where a single place is left.

    Where the report sums places up as `and 7 more`, a pattern covers nothing: nobody has seen what it would let pass.
    """
    meant = [waiver for waiver in waivers if waiver.rule == finding.rule]
    whole = next((waiver for waiver in meant if waiver.place in (None, finding.place)), None)
    if whole is not None:
        return (whole,)
    if _UNSEEN.search(finding.place):
        return ()
    by_name = [next((one for one in meant if one.covers(name)), None) for name in finding.place.split(", ")]
    used = tuple(dict.fromkeys(one for one in by_name if one is not None))
    return used if None not in by_name else ()


def _document(path: Path, file: str) -> Any:
    from checkpoint.plain_yaml import NotPlain, parse

    try:
        return parse(read_whole(path, MAX_WAIVERS).decode())
    except OSError as error:
        expected = "a file that lists rule, place and reason"
        code = "waiver-invalid" if error.errno == errno.EFBIG else "waiver-unreadable"
        raise BadWaiver(Problem(code, error.strerror or str(error), file, expected=expected)) from error
    except UnicodeDecodeError as error:
        raise BadWaiver(Problem("waiver-invalid", "is not UTF-8", file)) from error
    except NotPlain as error:
        raise BadWaiver(Problem("waiver-invalid", str(error), file)) from error


def _read(text: str) -> Waiver | None:
    match = _BRIEF.fullmatch(text)
    return Waiver(match[1], match[2]) if match else None


def _is_rule(rule_id: str) -> bool:
    load_rules()
    return rule_id in RULES
