"""JUnit XML as Jenkins, GitLab and others read it: a test case for each rule that ran, one for what was not judged."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from checkpoint.errors import escape
from verify.finding import Finding
from verify.registry import RULES
from verify.report import Report
from verify.reports.subjects import subject_of
from verify.reports.wording import LETTERS, places, reason, remedy, sentence


def junit(report: Report, *, strict: bool = False) -> str:
    """An XML document. Errors are failures, warnings too if `strict`; other findings are printed by their case."""
    failing = list(report.blocking(strict=strict))
    failed = len({finding.rule for finding in failing})
    cases = list(dict.fromkeys([*report.rules, *(finding.rule for finding in report.findings)]))
    total = str(len(cases) + len(report.skipped))
    counts = {"tests": total, "failures": str(failed), "errors": "0", "skipped": str(len(report.skipped))}
    root = Element("testsuites")
    suite = SubElement(root, "testsuite", {"name": escape(f"ckpt verify {report.checkpoint}"), **counts})
    for rule_id in cases:
        mine = [finding for finding in report.findings if finding.rule == rule_id]
        _case(suite, rule_id, mine, failing, report)
    for what, why in report.skipped.items():
        case = SubElement(suite, "testcase", classname="ckpt.not judged", name=escape(what))
        SubElement(case, "skipped", message=escape(why))
    SubElement(suite, "system-out").text = "\n".join(map(escape, [*report.facts, report.summary()]))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _case(suite: Element, rule_id: str, mine: list[Finding], failing: list[Finding], report: Report) -> None:
    rule = RULES.get(rule_id)
    name = f"{rule_id} {rule.title}" if rule else rule_id
    case = SubElement(suite, "testcase", classname=f"ckpt.{subject_of(rule_id)}", name=escape(name))
    bad = [finding for finding in mine if finding in failing]
    if bad:
        failure = SubElement(case, "failure", type=bad[0].severity, message=escape(sentence(bad[0])))
        failure.text = "\n".join(line for finding in bad for line in _lines(finding, report))
    rest = [line for finding in mine if finding not in bad for line in _lines(finding, report)]
    if rest:
        SubElement(case, "system-out").text = "\n".join(rest)


def _lines(finding: Finding, report: Report) -> Iterator[str]:
    yield escape(f"{LETTERS[finding.severity]} {finding.rule} {sentence(finding)}")
    yield from (escape(f"  at {place}") for place in places(finding))
    if finding.remedy:
        yield escape(f"  mend: {remedy(finding, report)}")
    if finding in report.waived:
        yield escape(f"  waived: {reason(finding, report)}")
