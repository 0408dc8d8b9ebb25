"""What a run of the rules came to: findings, worst first, what was learned, and what could not be judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from checkpoint.errors import escape
from verify.finding import SEVERITIES, Finding, Severity
from verify.registry import Level

if TYPE_CHECKING:
    from rich.console import Console

LETTERS: Mapping[Severity, str] = {"error": "E", "warning": "W", "note": "N"}
COLOURS: Mapping[Severity, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}
REPORT_VERSION = 1


@dataclass(frozen=True)
class Report:
    """The outcome of `verify`. `skipped` maps what was not judged to the reason; `rules` are the ids that ran."""

    checkpoint: str
    findings: tuple[Finding, ...]
    base: str | None = None
    engines: tuple[str, ...] = ()
    level: Level = "headers"
    tensors: int = 0
    rules: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> dict[Severity, int]:
        """How many findings there are of each severity."""
        found = Counter(finding.severity for finding in self.findings)
        return {severity: found[severity] for severity in SEVERITIES}

    def ok(self, *, strict: bool = False) -> bool:
        """No errors; with `strict` no warnings either."""
        counts = self.counts
        return not counts["error"] and not (strict and counts["warning"])

    def document(self) -> dict[str, Any]:
        """The report as `schemas/report.schema.json` describes it."""
        return {
            "version": REPORT_VERSION,
            "checkpoint": self.checkpoint,
            "base": self.base,
            "engines": list(self.engines),
            "level": self.level,
            "tensors": self.tensors,
            "rules": list(self.rules),
            "counts": dict(self.counts),
            "findings": [_finding_json(finding) for finding in self.findings],
            "facts": list(self.facts),
            "skipped": dict(self.skipped),
        }

    def lines(self) -> Iterator[str]:
        """The report as plain text, one finding a line."""
        for finding in self.findings:
            yield escape(finding_line(finding))
        for fact in self.facts:
            yield escape(f"  {fact}")
        for what, why in self.skipped.items():
            yield escape(f"- not judged: {what} ({why})")
        yield self.summary()

    def summary(self) -> str:
        """One line: how many findings of what kind, from how many rules over how many tensors."""
        said = [_number(count, severity) for severity, count in self.counts.items() if count]
        return f"{', '.join(said) or 'nothing found'}: {len(self.rules)} rules, {self.tensors:,} tensors"


def worst_first(findings: list[Finding]) -> tuple[Finding, ...]:
    """Worst first; among equals the order in which the rules ran, and that in which they found."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def finding_line(finding: Finding) -> str:
    """`E F07 place: found - consequence [engines] -> remedy`, without the parts that are empty."""
    text = f"{LETTERS[finding.severity]} {finding.rule} {finding.place}: {finding.found}"
    text += f" ({finding.count:,} of them)" if finding.count > 1 else ""
    text += f" — {finding.consequence}" if finding.consequence else ""
    text += f" [{' '.join(finding.engines)}]" if finding.engines else ""
    return text + (f" → {finding.remedy}" if finding.remedy else "")


def print_report(report: Report, console: Console) -> None:
    """Print with colours where `console` is a terminal, the plain lines otherwise."""
    from rich.text import Text

    if not console.is_terminal:
        for line in report.lines():
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    for finding in report.findings:
        line = escape(finding_line(finding))
        text = Text(line)
        text.stylize(COLOURS[finding.severity], 0, len(finding.rule) + 2)
        console.print(text)
    for line in list(report.lines())[len(report.findings) :]:
        console.print(Text(line, style="dim"))


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "place": finding.place,
        "found": finding.found,
        "consequence": finding.consequence,
        "engines": list(finding.engines),
        "remedy": finding.remedy,
        "count": finding.count,
    }


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
