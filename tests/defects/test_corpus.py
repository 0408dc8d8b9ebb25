"""Every defect of the corpus is found by the rule that names it and by no other; what is sound gives no finding at all.

Which rule and which companions is stated with each defect, beside what was done to the checkpoint.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from building import found

from defects.build import Defect
from defects.corpus import CORPUS
from defects.document import document
from defects.judging import outcome
from defects.reports import ALL as REPORTS
from defects.sound import FOREIGN, SOUND
from verify import RULES, load_rules, verify
from verify.registry import Level

DOCUMENT = Path(__file__).parents[2] / "docs" / "defects.md"
ENGINES = [(), ("vllm@0.24",), ("vllm@0.20",), ("sglang@0.5.21",), ("transformers@5.17",)]


@pytest.mark.parametrize("defect", CORPUS, ids=lambda defect: defect.id)
def test_defect_is_found_by_its_rule_alone(defect: Defect) -> None:
    assert set(found(outcome(defect))) == {defect.rule, *defect.also}


@pytest.mark.parametrize("defect", REPORTS, ids=lambda defect: defect.report)
def test_public_report_is_explained(defect: Defect) -> None:
    findings = [finding for finding in outcome(defect).findings if finding.rule == defect.rule]
    assert any(defect.says in f"{finding.found} {finding.consequence}" for finding in findings)
    assert all(finding.remedy for finding in findings)


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("based", [False, True])
@pytest.mark.parametrize("level", ["headers", "sample", "full"])
def test_what_is_sound_gives_no_finding(tmp_path: Path, name: str, based: bool, level: Level) -> None:
    build = SOUND[name]()
    base = build.base() if based and build.base else None
    assert verify(build.write(tmp_path / "model"), base=base, level=level).findings == ()


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("engines", ENGINES, ids=lambda engines: " ".join(engines) or "none")
def test_what_is_sound_is_so_for_each_engine(tmp_path: Path, name: str, engines: tuple[str, ...]) -> None:
    assert verify(SOUND[name]().write(tmp_path / "model"), engines=engines).findings == ()


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_format_is_named_as_not_supported(tmp_path: Path, name: str) -> None:
    report = verify(SOUND[name]().write(tmp_path / "model"), level="full")
    assert any("not supported" in why for why in report.skipped.values())


@pytest.mark.parametrize("name", ["experts-int4-g32", "body-int4-g128"])
def test_sound_presets_satisfy_their_profiles(tmp_path: Path, name: str) -> None:
    assert verify(SOUND[name]().write(tmp_path / "model"), schema=name).findings == ()


def test_every_rule_has_a_defect() -> None:
    load_rules()
    assert set(RULES) - {rule for defect in CORPUS for rule in (defect.rule, *defect.also)} == set()


def test_corpus_is_large_and_its_defects_are_distinct() -> None:
    assert len(CORPUS) >= 200
    assert [id for id, count in Counter(defect.id for defect in CORPUS).items() if count > 1] == []
    assert sorted(len({defect.on for defect in CORPUS} & {name}) for name in SOUND) == [1] * len(SOUND)


def test_every_public_report_is_there() -> None:
    assert [defect.name.partition(":")[0] for defect in REPORTS] == [f"A{number}" for number in range(1, 16)]


def test_document_is_current() -> None:
    """If this fails: python tests/defects/document.py > docs/defects.md"""
    assert DOCUMENT.read_text() == document()
