"""Waivers: what the file says, what is refused in it, and which findings a waiver covers."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from building import LLAMA, llama_entries, without, write_checkpoint

from checkpoint import survey
from schemas import validate
from verify import BadWaiver, Finding, GateResult, Report, Waiver, gate, load_waivers
from verify.reports import render
from verify.waivers import waivers_for

REASON = "the norm is tied to the head's in this family"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """One error, I01."""
    return write_checkpoint(tmp_path / "broken", without(llama_entries(), "model.norm.weight"), LLAMA)


def waivers(tmp_path: Path, text: str, name: str = "waivers.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def faults(path: Path) -> list[tuple[str, str | None]]:
    with pytest.raises(BadWaiver) as caught:
        load_waivers(path)
    assert all(problem.file == str(path) for problem in caught.value.problems)
    return [(problem.code, problem.tensor) for problem in caught.value.problems]


def passed(broken: Path, *given: str | Waiver) -> GateResult:
    return gate(broken, waivers=given)


YAML = """
waivers:
  - rule: M01
    reason: the head is published as a repository of its own
  - {rule: X04, place: 'tokenizer_*.json', reason: "upstream's own"}
"""
MEANT = (
    Waiver("M01", None, "the head is published as a repository of its own"),
    Waiver("X04", "tokenizer_*.json", "upstream's own"),
)


def test_a_file_lists_rule_place_and_reason(tmp_path: Path) -> None:
    assert load_waivers(waivers(tmp_path, YAML)) == MEANT


def test_a_file_may_be_json(tmp_path: Path) -> None:
    entries = [{"rule": one.rule, "reason": one.reason} | ({"place": one.place} if one.place else {}) for one in MEANT]
    assert load_waivers(waivers(tmp_path, json.dumps({"waivers": entries}), "waivers.json")) == MEANT


def test_a_file_without_waivers_is_no_fault(tmp_path: Path) -> None:
    assert load_waivers(waivers(tmp_path, "waivers: []")) == ()


@pytest.mark.parametrize(
    "text, places",
    [
        ("", [None]),
        ("- {rule: M01, reason: x}", [None]),
        ("waivers: M01", ["waivers"]),
        ("waivers: [M01]", ["waivers[0]"]),
        ("waivers: [{rule: M01}]", ["waivers[0]"]),
        ("waivers: [{reason: x}]", ["waivers[0]"]),
        ("waivers: [{rule: M01, reason: ''}]", ["waivers[0].reason"]),
        ("waivers: [{rule: M01, reason: '  \t'}]", ["waivers[0].reason"]),
        ("waivers: [{rule: M01, reason: no}]", ["waivers[0].reason"]),
        ("waivers: [{rule: M01, reason: x, place: ''}]", ["waivers[0].place"]),
        ("waivers: [{rule: M01, reason: x, until: tomorrow}]", ["waivers[0]"]),
        ("waivers: [{rule: m01, reason: x}, {rule: '*', reason: x}]", ["waivers[0].rule", "waivers[1].rule"]),
        ("waivers: []\nrules: []", [None]),
        ("waivers: []\nwaivers: []", [None]),
        ("waivers: [&a {rule: M01, reason: x}, *a]", [None]),
        ("waivers: [", [None]),
    ],
)
def test_a_file_that_is_not_plain_waivers_is_refused_with_the_places(
    text: str, places: list[str | None], tmp_path: Path
) -> None:
    assert faults(waivers(tmp_path, text)) == [("waiver-invalid", place) for place in places]


def test_every_unknown_rule_of_a_file_is_named(tmp_path: Path) -> None:
    text = "waivers: [{rule: M99, reason: x}, {rule: M01, reason: x}, {rule: Q01, reason: x}]"
    named = [("waiver-unknown", "waivers[0].rule"), ("waiver-unknown", "waivers[2].rule")]
    assert faults(waivers(tmp_path, text)) == named


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert faults(tmp_path / "none.yaml") == [("waiver-unreadable", None)]
    (tmp_path / "latin.yaml").write_bytes(b"waivers: [] # \xe9")
    assert faults(tmp_path / "latin.yaml") == [("waiver-invalid", None)]
    assert faults(waivers(tmp_path, "#" * (1024 * 1024 + 1))) == [("waiver-invalid", None)]


@pytest.mark.parametrize(
    "place, pattern, covered",
    [
        ("model.norm.weight", None, True),
        ("model.norm.weight", "model.norm.weight", True),
        ("model.norm.weight", "model.*", True),
        ("model.norm.weight", "norm", False),
        ("model.norm.weight", "MODEL.*", False),
        ('modules["a.b"].state', 'modules["a.b"].state', True),
        ("layers.{0-3}.up, layers.{0-3}.down", "layers.*", True),
        ("layers.{0-3}.up, lm_head", "layers.*", False),
        ("layers.{0-3}.up, lm_head", "layers.{0-3}.up, lm_head", True),
        ("layers.{0-3}.up and 7 more", "layers.*", False),
        ("layers.{0-3}.up and 7 more", None, True),
        ("layers.{0-3}.up and 7 more", "layers.{0-3}.up and 7 more", True),
    ],
)
def test_a_waiver_covers_only_places_that_the_report_spells_out(place: str, pattern: str | None, covered: bool) -> None:
    finding, waiver = Finding("I01", "error", place, "is missing"), Waiver("I01", pattern, "x")
    assert waivers_for(finding, [Waiver("I02", None, "x"), waiver]) == ((waiver,) if covered else ())


def test_several_waivers_may_cover_a_finding_together() -> None:
    finding = Finding("I01", "error", "layers.{0-3}.up, lm_head", "is missing")
    pair = (Waiver("I01", "layers.*", "x"), Waiver("I01", "lm_head", "y"))
    assert waivers_for(finding, pair) == pair
    assert waivers_for(finding, pair[1:]) == ()


def test_what_is_waived_passes_and_is_shown_with_its_reason(broken: Path) -> None:
    result = passed(broken, Waiver("I01", "model.norm.weight", REASON))
    assert result.allowed
    assert (result.blocking, result.unused) == ((), ())
    assert result.report.waived == {result.waived[0]: REASON}
    assert list(result.lines()) == [f"waived: I01 model.norm.weight: {REASON}"]


def test_a_waiver_that_matches_nothing_is_told_and_lets_nothing_pass(broken: Path) -> None:
    result = passed(broken, Waiver("I01", "lm_head.weight", "moved"), Waiver("M01", None, "no head"), "I02")
    assert not result.allowed
    assert [str(waiver) for waiver in result.unused] == ["I01:lm_head.weight", "M01", "I02"]
    assert list(result.lines()) == [
        "a waiver that matches nothing: I01:lm_head.weight (moved)",
        "a waiver that matches nothing: M01 (no head)",
        "a waiver that matches nothing: I02",
    ]


def test_a_waiver_made_in_python_must_name_a_rule_too(broken: Path) -> None:
    with pytest.raises(BadWaiver, match="'I99' names no rule"):
        passed(broken, Waiver("I99", None, "x"))


def test_a_reason_cannot_forge_a_line(broken: Path) -> None:
    (line,) = passed(broken, Waiver("I01", None, "fine\nnothing found\x1b[2J")).lines()
    assert line.endswith(r"fine\nnothing found\x1b[2J")


@pytest.fixture
def report(broken: Path) -> Report:
    return passed(broken, Waiver("I01", None, REASON)).report


def test_the_json_report_carries_the_reason_under_its_schema(report: Report) -> None:
    document = report.document()
    assert validate(document, "report") == []
    assert [finding["waived"] for finding in document["findings"]] == [REASON]
    assert document["counts"]["error"] == 1


def test_every_form_of_the_report_says_what_was_waived_and_why(report: Report) -> None:
    checkpoint = survey(report.checkpoint)
    assert f"    waived: {REASON}\n" in render(report, "text", checkpoint)
    assert f"waived   {REASON}\n" in render(report, "text", checkpoint, verbose=True)
    assert "1 error, 1 waived: " in render(report, "text", checkpoint)
    assert "the norm is tied to the head" in render(report, "html", checkpoint)
    (result,) = json.loads(render(report, "sarif", checkpoint))["runs"][0]["results"]
    assert result["suppressions"] == [{"kind": "external", "status": "accepted", "justification": REASON}]
    suite = ElementTree.fromstring(render(report, "junit", checkpoint))[0]
    assert suite.get("failures") == "0"
    assert f"waived: {REASON}" in "".join(case.findtext("system-out") or "" for case in suite)


def test_a_finding_that_stands_is_said_to_be_waived_in_no_form(broken: Path) -> None:
    report, checkpoint = gate(broken).report, survey(broken)
    for form in ("text", "json", "sarif", "junit", "html"):
        text = render(report, form, checkpoint)  # type: ignore[arg-type]
        assert "waived" not in text
        assert "suppressions" not in text
