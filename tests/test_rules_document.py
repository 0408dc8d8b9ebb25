"""The registry of rules as readers see it: every id of the contract, each with its reason, and the printed table."""

from __future__ import annotations

from pathlib import Path

import pytest
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

from verify import RULES, load_rules
from verify.case import ENGINES
from verify.rules.__main__ import document
from verify.rules.schemes import ARGUMENT_FIELDS, DTYPE_FIELDS, GROUP_FIELDS

DOCUMENT = Path(__file__).parents[1] / "docs" / "rules.md"
COUNTS = {"F": 15, "I": 11, "T": 11, "C": 20, "M": 7, "L": 2, "N": 7, "X": 8}
"""The contract: ids F01 to F15 and so on."""


@pytest.fixture(scope="module", autouse=True)
def rules() -> None:
    load_rules()


def test_every_rule_of_the_contract_is_registered() -> None:
    assert {f"{letter}{number:02d}" for letter, count in COUNTS.items() for number in range(1, count + 1)} <= set(RULES)


def test_every_rule_says_why_and_what_mends_it() -> None:
    incomplete = [rule.id for rule in RULES.values() if not (rule.title and rule.evidence and rule.remedy)]
    assert incomplete == []


def test_rules_concern_engines_that_there_are() -> None:
    assert {engine for rule in RULES.values() for engine in rule.engines} <= set(ENGINES)


def test_rules_that_need_a_base_or_contents_are_marked() -> None:
    assert {rule.id for rule in RULES.values() if rule.needs_base} == {"M06", "N04", "N05", "N06", "X02", "X03", "X09"}
    content = {rule.id for rule in RULES.values() if rule.cost == "content"}
    assert content == {"T06", "M06", "M07", *(f"N{number:02d}" for number in range(1, 9))}


def test_known_fields_are_those_of_compressed_tensors() -> None:
    assert set(QuantizationScheme.model_fields) == GROUP_FIELDS
    assert set(QuantizationArgs.model_fields) == ARGUMENT_FIELDS | DTYPE_FIELDS


def test_printed_table_is_current() -> None:
    """If this fails: python -m verify.rules > docs/rules.md"""
    assert DOCUMENT.read_text() == document()
