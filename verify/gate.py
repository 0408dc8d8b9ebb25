"""The gate before an upload: may this checkpoint leave the machine? Every hook asks this one function."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from checkpoint import Checkpoint, CkptError, Problem
from verify.case import ENGINES
from verify.finding import Finding
from verify.registry import RULES, Level
from verify.report import Report
from verify.rules import load_rules
from verify.run import verify

_WAIVER = re.compile(r"([A-Z]\d{2})(?::(.+))?", re.DOTALL)


class BadWaiver(CkptError):
    """A waiver that names no rule: a slip of the pen in it must not be taken for consent, nor for none."""

    headline = "a waiver cannot be used"


@dataclass(frozen=True)
class GateResult:
    """The verdict: `blocking` are the findings that forbid, `waived` those that would, had they not been waived."""

    report: Report
    blocking: tuple[Finding, ...]
    waived: tuple[Finding, ...]

    @property
    def allowed(self) -> bool:
        return not self.blocking


def gate(
    path: Checkpoint | Path | str,
    *,
    level: Level = "headers",
    base: Checkpoint | Path | str | None = None,
    engines: Sequence[str] = ENGINES,
    strict: bool = False,
    waivers: Iterable[str] = (),
) -> GateResult:
    """Judge `path` and say whether it may pass: no error, with `strict` no warning either.

    A waiver is a rule's id, `X05`, or an id and a pattern that the place must match whole, `X04:tokenizer_*.json`.
    What cannot be read at all raises UnreadableCheckpoint, so that it does not pass; a waiver for no rule, BadWaiver.

    >>> gate("EXPORT", waivers=["F10"]).allowed  # doctest: +SKIP
    True
    """
    accepted = _parsed(waivers)
    report = verify(path, base=base, engines=engines, level=level)
    failing = list(report.blocking(strict=strict))
    waived = tuple(finding for finding in failing if _is_waived(finding, accepted))
    return GateResult(report, tuple(finding for finding in failing if finding not in waived), waived)


def _parsed(waivers: Iterable[str]) -> list[tuple[str, str | None]]:
    load_rules()
    found, problems = [], []
    for waiver in waivers:
        match = _WAIVER.fullmatch(waiver)
        if match and match[1] in RULES:
            found.append((match[1], match[2]))
        else:
            problems.append(Problem("waiver-unknown", f"{waiver!r} names no rule", expected="RULE or RULE:PLACE"))
    if problems:
        raise BadWaiver(problems)
    return found


def _is_waived(finding: Finding, accepted: Iterable[tuple[str, str | None]]) -> bool:
    return any(
        finding.rule == rule and (pattern is None or fnmatchcase(finding.place, pattern)) for rule, pattern in accepted
    )
