"""What the letters of rule ids stand for, and findings put together by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from verify.finding import SEVERITIES, Finding

SUBJECTS: Mapping[str, str] = {
    "F": "files and index",
    "I": "inventory",
    "T": "packed modules",
    "C": "quantization config",
    "M": "draft head",
    "L": "output head",
    "O": "seen in running engines",
    "X": "config and side files",
    "N": "contents",
    "S": "schemas",
}


def subject_of(rule: str) -> str:
    """The subject of a rule by its id."""
    return SUBJECTS.get(rule[:1], "other")


def by_subject(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Findings by subject, the subject with the worst first; of equals the one whose findings come first."""
    groups: dict[str, list[Finding]] = {}
    for finding in sorted(findings, key=_badness):
        groups.setdefault(subject_of(finding.rule), []).append(finding)
    return groups


def _badness(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity)
