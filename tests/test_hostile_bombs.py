"""What is much when it is read: small forms of all, each in a process of its own; and the bounds that hold in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from building import packed_llama

from checkpoint import UnreadableCheckpoint, escape, open_checkpoint, survey
from checkpoint.document import MOST_DIGITS, parse_json
from checkpoint.errors import LONGEST_LINE, MOST_PROBLEMS, Problem, bounded, brief
from checkpoint.plain_yaml import NotPlain, parse
from checkpoint.quantization import MOST_PATTERNS
from reliability.hostile import bombs
from reliability.hostile.trial import Trial, carried_out
from schemas import BadSchema
from schemas.apart import validate_apart

SCALE = 0.002
SEVERAL = 5
"""Bombs of which one is tried here."""


@pytest.mark.parametrize("trial", [*bombs.trials(SCALE)][::SEVERAL], ids=lambda trial: trial.name)
def test_it_ends_in_words(trial: Trial) -> None:
    carried_out(trial)


@pytest.mark.parametrize("count", [MOST_PROBLEMS, MOST_PROBLEMS + 1, MOST_PROBLEMS + 7])
def test_of_many_problems_the_first_are_told_and_that_there_are_more(count: int) -> None:
    found = bounded(Problem("x", f"{number}", "file", "tensor") for number in range(count))
    assert len(found) == MOST_PROBLEMS
    assert (found[-1].found == "and more such") is (count > MOST_PROBLEMS)
    assert found[-1].code == "x"


def test_a_long_line_is_cut() -> None:
    assert escape("a" * LONGEST_LINE) == "a" * LONGEST_LINE
    assert escape("a" * LONGEST_LINE + "bcd") == "a" * LONGEST_LINE + "... (3 more characters)"


@pytest.mark.parametrize("value", ["a" * 10**6, [[[[[[1]]]]]], list(range(10**6)), {str(n): n for n in range(1000)}])
def test_of_a_large_value_the_beginning_is_shown(value: object) -> None:
    assert len(brief(value)) < 1000
    assert brief([1, "a", None]) == repr([1, "a", None])


def test_a_document_has_numbers_that_can_be_computed_with() -> None:
    assert parse_json(b'{"a": %s}' % (b"9" * MOST_DIGITS), "x")["a"] == 10**MOST_DIGITS - 1
    with pytest.raises(UnreadableCheckpoint, match=f"more than {MOST_DIGITS} digits"):
        parse_json(b'{"a": %s}' % (b"9" * (MOST_DIGITS + 1)), "x")


@pytest.mark.parametrize("text, value", [("a: 1:30", 90), ("a: 0x10", 16), ("a: 12", 12)])
def test_yaml_keeps_its_numbers(text: str, value: int) -> None:
    assert parse(text) == {"a": value}


def test_yaml_has_no_number_that_takes_long() -> None:
    with pytest.raises(NotPlain, match="line 1: a number of 601 characters"):
        parse("a: 1" + ":59" * 200)


def test_a_config_with_more_patterns_than_any_is_refused_and_found(tmp_path: Path) -> None:
    folder = packed_llama(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for count, told in ((MOST_PATTERNS, []), (MOST_PATTERNS + 1, ["config-excessive"])):
        config["quantization_config"]["ignore"] = ["lm_head", *(f"re:x{number}" for number in range(count))]
        (folder / "config.json").write_text(json.dumps(config))
        assert [problem.code for problem in survey(folder).problems] == told
    with pytest.raises(UnreadableCheckpoint, match="4,097 regular expressions; expected at most 4,096"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "schema, said",
    [
        ({"$ref": "#"}, "comes to no end"),
        ({"$ref": "http://127.0.0.1:9/x"}, "refers to 'http://127.0.0.1:9/x'"),
        ({"type": 5}, "not valid"),
    ],
)
def test_a_schema_of_a_stranger_is_refused_by_name(schema: dict[str, object], said: str) -> None:
    with pytest.raises(BadSchema, match=said):
        validate_apart({"a": 1}, schema)


def test_a_schema_of_a_stranger_judges() -> None:
    assert validate_apart({"a": 1}, {"required": ["a"]}) == []
    (fault,) = validate_apart({"a": "x"}, {"properties": {"a": {"type": "integer"}}})
    assert str(fault) == "a: 'x' is not of type 'integer'"
