"""Findings in words: the same in every form."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from verify.finding import Finding, Severity
from verify.report import Report

LETTERS: Mapping[Severity, str] = {"error": "E", "warning": "W", "note": "N"}

SHOWN = 2
"""Folded names of a place that a brief line spells out."""

UNREASONED = "no reason given"


def places(finding: Finding) -> list[str]:
    """The folded names that the finding's place lists."""
    return finding.place.split(", ")


def brief_place(finding: Finding) -> str:
    """The place with its first names alone."""
    names = places(finding)
    return finding.place if len(names) <= SHOWN else f"{', '.join(names[:SHOWN])} and {len(names) - SHOWN} more"


def found(finding: Finding) -> str:
    """What was found, and how often unless it says so."""
    told = finding.count == 1 or re.search(rf"\b{finding.count}\b", finding.found)
    return finding.found if told else f"{finding.found} ({finding.count:,} of them)"


def sentence(finding: Finding) -> str:
    """`place: found — consequence [engines]`, without the parts that are empty."""
    text = f"{brief_place(finding)}: {found(finding)}"
    text += f" — {finding.consequence}" if finding.consequence else ""
    return text + (f" [{' '.join(finding.engines)}]" if finding.engines else "")


def remedy(finding: Finding, report: Report) -> str:
    """The remedy as it can be typed: SRC and BASE are the folders of the report."""
    folders = {"SRC": shlex.quote(report.checkpoint), "BASE": shlex.quote(report.base) if report.base else "BASE"}
    return re.sub(r"\b(?:SRC|BASE)\b", lambda word: folders[word[0]], finding.remedy)


def reason(finding: Finding, report: Report) -> str:
    """Why the finding was let pass; empty where it was not."""
    return (report.waived[finding] or UNREASONED) if finding in report.waived else ""


def remedies(report: Report) -> dict[str, list[str]]:
    """Each remedy of the report's findings, with the rules that ask for it."""
    found: dict[str, list[str]] = {}
    for finding in report.findings:
        if finding.remedy:
            rules = found.setdefault(remedy(finding, report), [])
            rules += [] if finding.rule in rules else [finding.rule]
    return found
