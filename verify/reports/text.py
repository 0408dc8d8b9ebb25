"""The report as lines for a terminal or a log: brief for one screen, or all that is known."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from checkpoint.errors import escape
from verify.finding import SEVERITIES, Finding
from verify.registry import RULES
from verify.report import Report
from verify.reports.subjects import by_subject
from verify.reports.wording import LETTERS, found, places, reason, remedies, remedy, sentence

MOST = 8
"""Findings of one subject, and remedies, that the brief form spells out."""

Style = Literal["", "heading", "error", "warning", "note", "dim"]


@dataclass(frozen=True)
class Line:
    """One logical line; the first `marked` characters of its text carry `style`, all of them where it is None."""

    text: str
    style: Style = ""
    indent: int = 0
    marked: int | None = None

    @property
    def plain(self) -> str:
        """The line as characters that cannot drive a terminal."""
        return " " * self.indent + escape(self.text)


def brief(report: Report) -> Iterator[Line]:
    """By subject, worst first, a line for each finding; then what mends them, what was learned, and the sum."""
    for subject, findings in by_subject(report.findings).items():
        yield Line(subject, "heading")
        for finding in findings[:MOST]:
            yield _headed(finding, sentence(finding))
            if finding in report.waived:
                yield Line(f"waived: {reason(finding, report)}", "dim", 4)
        if len(findings) > MOST:
            yield Line(f"and {_kinds(findings[MOST:])}; all of them with -v", "dim", 2)
    yield from _mending(report)
    yield from _rest(report)


def full(report: Report) -> Iterator[Line]:
    """By subject, worst first, everything about each finding; then what was learned, and the sum."""
    for subject, findings in by_subject(report.findings).items():
        yield Line(subject, "heading")
        for finding in findings:
            yield from details(finding, report)
    yield from _rest(report)


def details(finding: Finding, report: Report) -> Iterator[Line]:
    """One finding: its rule's title, every place, what was found, what it does where, on what evidence, what mends."""
    known = RULES.get(finding.rule)
    yield _headed(finding, known.title if known else found(finding))
    rows = [("where", place) for place in places(finding)]
    rows += [("found", found(finding)), ("does", finding.consequence)]
    rows += [("engines", " ".join(finding.engines) or "all"), ("evidence", known.evidence if known else "")]
    rows += [("mend", remedy(finding, report)), ("waived", reason(finding, report))]
    before = ""
    for label, text in rows:
        if text:
            yield Line(f"{'' if label == before else label:9}{text}", "dim", 6, marked=9)
            before = label


def explanation(rule_id: str) -> Iterator[Line]:
    """What there is to know of a rule. Raises KeyError where there is none of that id."""
    rule = RULES[rule_id]
    yield Line(f"{rule.id} {rule.title}", rule.severity, marked=len(rule.id))
    doc = (getattr(rule.check, "__doc__", None) or "").strip() if hasattr(rule.check, "__name__") else ""
    reads = {"headers": "names, shapes and config", "config": "config.json", "content": "tensor data (--level)"}
    rows = [
        ("severity", rule.severity),
        ("engines", " ".join(rule.engines) or "all"),
        ("reads", reads[rule.cost] + (", and the base" if rule.needs_base else "")),
        ("evidence", rule.evidence),
        ("versions", rule.versions),
        ("mend", rule.remedy),
        ("more", " ".join(doc.split())),
    ]
    for label, text in rows:
        if text:
            yield Line(f"{label:10}{text}", "dim", 2, marked=10)


def _headed(finding: Finding, text: str) -> Line:
    head = f"{LETTERS[finding.severity]} {finding.rule}"
    return Line(f"{head} {text}", finding.severity, 2, marked=len(head))


def _mending(report: Report) -> Iterator[Line]:
    asked = remedies(report)
    if asked:
        yield Line("what mends it", "heading")
    for text, rules in list(asked.items())[:MOST]:
        yield Line(f"{text}  ({' '.join(rules)})", "", 2)
    if len(asked) > MOST:
        yield Line(f"and {len(asked) - MOST} more; all of them with -v", "dim", 2)
    if len(asked) > 1 and report.base is not None:
        folders = f"{shlex.quote(report.checkpoint)} --base {shlex.quote(report.base)}"
        yield Line(f"or in one write, as far as that goes: ckpt verify {folders} --fix --out FIXED", "dim", 2)


def _rest(report: Report) -> Iterator[Line]:
    for fact in report.facts:
        yield Line(fact, "dim")
    for what, why in report.skipped.items():
        yield Line(f"not judged: {what} ({why})", "dim")
    worst = next((severity for severity in SEVERITIES if report.counts[severity]), None)
    yield Line(report.summary(), worst or "heading")


def _kinds(findings: list[Finding]) -> str:
    """`3 errors, 1 note`."""
    counts = Counter(finding.severity for finding in findings)
    said = [f"{counts[severity]} {severity}{'' if counts[severity] == 1 else 's'}" for severity in SEVERITIES]
    return ", ".join(text for text, severity in zip(said, SEVERITIES, strict=True) if counts[severity])
