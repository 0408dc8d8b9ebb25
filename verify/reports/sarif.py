"""SARIF 2.1.0 as GitHub code scanning takes it: rules with help, results with a place, and fingerprints that last.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/ and GitHub's "SARIF support for code scanning", which asks for
`primaryLocationLineHash` and relative URIs, and shows 1,000 characters of a rule's texts.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from checkpoint import Checkpoint
from checkpoint.errors import escape
from verify.finding import Finding, Severity
from verify.registry import RULES
from verify.report import Report
from verify.reports.places import Atlas, Spot
from verify.reports.subjects import subject_of
from verify.reports.wording import brief_place, found, reason, remedy

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS: Mapping[Severity, str] = {"error": "error", "warning": "warning", "note": "note"}
LONGEST = 1000
"""Characters of a text."""

MOST = 5000
"""Results that GitHub keeps of one run."""


def sarif(report: Report, checkpoint: Checkpoint) -> dict[str, Any]:
    """The report as a SARIF log of one run.

    URIs are relative to where the command ran if the checkpoint was given by a relative path, as in a CI job that
    checked a repository out; else they are the names of files in the checkpoint.
    """
    ids = list(dict.fromkeys([*report.rules, *(finding.rule for finding in report.findings)]))
    atlas, seen, root = Atlas(checkpoint), Counter[str](), _root(report.checkpoint)
    results = [_result(finding, ids, atlas, root, seen, report) for finding in report.findings[:MOST]]
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "ckpt", **_version(), "rules": [_rule(rule_id) for rule_id in ids]}},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": _unjudged(report)}],
        "results": results,
        "columnKind": "unicodeCodePoints",
        "properties": {"level": report.level, "engines": list(report.engines), "facts": list(report.facts)},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _version() -> dict[str, str]:
    try:
        return {"version": version("ckpt-surgery")}
    except PackageNotFoundError:  # run from a source tree
        return {}


def _rule(rule_id: str) -> dict[str, Any]:
    rule = RULES.get(rule_id)
    title = rule.title if rule else rule_id
    entry: dict[str, Any] = {"id": rule_id, "shortDescription": _text(title), "fullDescription": _text(title)}
    if rule is None:
        return entry
    lines = [f"{title[:1].upper()}{title[1:]}.", f"Engines: {', '.join(rule.engines) or 'all'}."]
    lines += [f"Evidence: {rule.evidence}."] if rule.evidence else []
    lines += [f"Remedy: {rule.remedy}"] if rule.remedy else []
    entry["help"] = {"text": "\n".join(lines), "markdown": "\n\n".join(lines)}
    entry["defaultConfiguration"] = {"level": LEVELS[rule.severity]}
    entry["properties"] = {"tags": [subject_of(rule_id), *rule.engines]}
    return entry


def _result(
    finding: Finding, ids: list[str], atlas: Atlas, root: str, seen: Counter[str], report: Report
) -> dict[str, Any]:
    spots = atlas.spots(finding)
    let_pass = {"kind": "external", "status": "accepted", "justification": _short(reason(finding, report))}
    return {
        "ruleId": finding.rule,
        "ruleIndex": ids.index(finding.rule),
        "level": LEVELS[finding.severity],
        "message": _text(_message(finding, report)),
        "locations": [_location(spots[0], root)],
        "relatedLocations": [_location(spot, root) for spot in spots[1:]],
        "partialFingerprints": {"primaryLocationLineHash": _fingerprint(finding, seen)},
        **({"suppressions": [let_pass]} if finding in report.waived else {}),
        "properties": {"engines": list(finding.engines), "count": finding.count},
    }


def _message(finding: Finding, report: Report) -> str:
    """What is where, what it does in which engine, and what mends it."""
    said = [f"{brief_place(finding)}: {found(finding)}", finding.consequence]
    said += [f"Engines: {', '.join(finding.engines)}" if finding.engines else "", remedy(finding, report)]
    return ". ".join(
        f"{text[:1].upper()}{text[1:]}" if number else text for number, text in enumerate(filter(None, said))
    )


def _location(spot: Spot, root: str) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": root + quote(spot.file, errors="replace")},
            "region": {"startLine": spot.line},
        },
        "logicalLocations": [{"fullyQualifiedName": _short(spot.name)}],
    }


def _fingerprint(finding: Finding, seen: Counter[str]) -> str:
    """The same in every run that finds the same rule violated at the same place, whatever the wording."""
    digest = hashlib.sha256(f"{finding.rule}\n{finding.place}".encode(errors="replace")).hexdigest()[:16]
    seen[digest] += 1
    return f"{digest}:{seen[digest]}"


def _root(checkpoint: str) -> str:
    path = PurePath(checkpoint)
    inside = not path.is_absolute() and ".." not in path.parts and path.parts
    return quote(path.as_posix(), errors="replace") + "/" if inside else ""


def _unjudged(report: Report) -> list[dict[str, Any]]:
    return [{"level": "note", "message": _text(f"Not judged: {what} ({why})")} for what, why in report.skipped.items()]


def _text(text: str) -> dict[str, str]:
    return {"text": _short(text)}


def _short(text: str) -> str:
    text = escape(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
