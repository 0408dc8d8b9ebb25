"""The report as one HTML file that needs nothing else: no network, no script, no font, no picture."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from checkpoint import Checkpoint
from checkpoint.layout import layout
from verify.finding import Finding
from verify.registry import RULES
from verify.report import Report
from verify.reports.contents import contents
from verify.reports.inside import inside
from verify.reports.markup import Markup, element, joined
from verify.reports.subjects import by_subject
from verify.reports.wording import LETTERS, brief_place, found, places, reason, remedies, remedy

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Were a name of the checkpoint ever taken for markup, the browser would still load and run nothing."""


def page(report: Report, checkpoint: Checkpoint) -> str:
    """One document: verdict, findings, errors of packed weights where they were measured, and the layout."""
    style = files("verify.reports").joinpath("page.css").read_text(encoding="utf-8")
    head = [
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        element("title", f"ckpt verify {report.checkpoint}"),
        element("style", Markup(style)),
    ]
    sections = [*_top(report), *_findings(report), *contents(report), *inside(layout(checkpoint)), *_learned(report)]
    document = element("html", element("head", head), element("body", joined(sections)), lang="en")
    return f"<!doctype html>\n{document}\n"


def _top(report: Report) -> Iterator[Markup]:
    fine = report.ok()
    yield element("h1", report.checkpoint)
    verdict = element("span", "passes" if fine else "fails", class_=f"verdict {'fine' if fine else 'bad'}")
    yield element("p", verdict, f" — {report.summary()}", class_="sum")
    read = {"headers": "headers and config", "sample": "headers, config and a sample of the contents"}
    rows = [("base", report.base or "none given"), ("judged for", ", ".join(report.engines) or "no engine")]
    yield _pairs([*rows, ("read", read.get(report.level, "everything"))])


def _pairs(rows: list[tuple[str, str]]) -> Markup:
    """Labels and texts side by side, those without a text left out."""
    return element("dl", (joined([element("dt", label), element("dd", text)]) for label, text in rows if text))


def _findings(report: Report) -> Iterator[Markup]:
    yield element("h2", "Findings")
    if not report.findings:
        yield element("p", "Nothing stands against this checkpoint.")
    for subject, findings in by_subject(report.findings).items():
        yield element("h3", subject.capitalize())
        yield from (_finding(finding, report) for finding in findings)
    mending = remedies(report)
    if mending:
        yield element("h3", "What mends it")
        items = [element("li", element("code", text), f" ({', '.join(rules)})") for text, rules in mending.items()]
        yield element("ul", joined(items))


def _finding(finding: Finding, report: Report) -> Markup:
    rule = RULES.get(finding.rule)
    letter = element("span", f"{LETTERS[finding.severity]} {finding.rule}", class_="rule")
    place = element("span", brief_place(finding), class_="place")
    does = element("span", f" — {finding.consequence}" if finding.consequence else "", class_="soft")
    summary = element("summary", letter, place, f": {found(finding)}", does)
    listed = joined(element("div", name, class_="place") for name in places(finding))
    rows = [
        ("rule", rule.title if rule else ""),
        ("where", listed),
        ("engines", ", ".join(finding.engines) or "all"),
        ("evidence", rule.evidence if rule else ""),
        ("mend", element("code", remedy(finding, report)) if finding.remedy else ""),
        ("waived", reason(finding, report)),
    ]
    return element("details", summary, _pairs(rows), class_=f"finding {finding.severity}")


def _learned(report: Report) -> Iterator[Markup]:
    if report.facts:
        yield element("h2", "Learned on the way")
        yield element("ul", (element("li", fact) for fact in report.facts))
    if report.skipped:
        yield element("h2", "Not judged")
        yield element("ul", (element("li", f"{what}: {why}") for what, why in report.skipped.items()))
