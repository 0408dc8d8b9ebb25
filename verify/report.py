"""What a run of the rules came to: findings, worst first, what was learned, and what could not be judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from verify.finding import SEVERITIES, Finding, Severity
from verify.registry import Level

if TYPE_CHECKING:
    from verify.measuring import Measurement

REPORT_VERSION = 1


@dataclass(frozen=True)
class Report:
    """The outcome of `verify`. `skipped` maps what was not judged to the reason; `rules` are the ids that ran;
    `measurements` are there where they were asked for and contents were compared with a base; `waived` are findings
    that were let pass, with the reason."""

    checkpoint: str
    findings: tuple[Finding, ...]
    base: str | None = None
    engines: tuple[str, ...] = ()
    level: Level = "headers"
    tensors: int = 0
    rules: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()
    waived: Mapping[Finding, str] = field(default_factory=dict)

    @property
    def counts(self) -> dict[Severity, int]:
        """How many findings there are of each severity."""
        found = Counter(finding.severity for finding in self.findings)
        return {severity: found[severity] for severity in SEVERITIES}

    def ok(self, *, strict: bool = False) -> bool:
        """No errors but waived ones; with `strict` no warnings either."""
        return not any(self.blocking(strict=strict))

    def blocking(self, *, strict: bool = False) -> Iterator[Finding]:
        """The findings that make the checkpoint fail: errors; with `strict` warnings, too. Waived ones do not."""
        failing = ("error", "warning") if strict else ("error",)
        return (one for one in self.findings if one.severity in failing and one not in self.waived)

    def document(self) -> dict[str, Any]:
        """The report as `schemas/report.schema.json` describes it."""
        document: dict[str, Any] = {
            "version": REPORT_VERSION,
            "checkpoint": self.checkpoint,
            "base": self.base,
            "engines": list(self.engines),
            "level": self.level,
            "tensors": self.tensors,
            "rules": list(self.rules),
            "counts": dict(self.counts),
            "findings": [_finding_json(finding, self.waived) for finding in self.findings],
            "facts": list(self.facts),
            "skipped": dict(self.skipped),
        }
        if self.measurements:
            document["measurements"] = [_measurement_json(one) for one in self.measurements]
        return document

    def lines(self) -> Iterator[str]:
        """The report as plain text for one screen; every name in it is escaped."""
        from verify.reports.text import brief

        return (line.plain for line in brief(self))

    def summary(self) -> str:
        """One line: how many findings of what kind, from how many rules over how many tensors."""
        said = [_number(count, severity) for severity, count in self.counts.items() if count]
        said += [f"{len(self.waived)} waived"] if self.waived else []
        rules, tensors = _number(len(self.rules), "rule"), _number(self.tensors, "tensor")
        return f"{', '.join(said) or 'nothing found'}: {rules}, {tensors}"


def worst_first(findings: list[Finding]) -> tuple[Finding, ...]:
    """Worst first; among equals the order in which the rules ran, and that in which they found."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def _finding_json(finding: Finding, waived: Mapping[Finding, str]) -> dict[str, Any]:
    document = {
        "rule": finding.rule,
        "severity": finding.severity,
        "place": finding.place,
        "found": finding.found,
        "consequence": finding.consequence,
        "engines": list(finding.engines),
        "remedy": finding.remedy,
        "count": finding.count,
    }
    return document | ({"waived": waived[finding]} if finding in waived else {})


def _measurement_json(one: Measurement) -> dict[str, Any]:
    return {
        "module": one.module,
        "bits": one.bits,
        "group": one.group,
        "error": one.error,
        "saturation": one.saturation,
        "steps": list(one.steps),
    }


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
