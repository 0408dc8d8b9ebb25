"""Regular expressions of strangers against 93,000 names: some that take for ever, and the bound on the others.

What a matcher says is the matter of `test_slow_patterns`; all of them are tried by `python -m reliability.hostile`.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from math import inf
from pathlib import Path

import pytest
from building import packed_llama
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint import Draft, open_checkpoint
from checkpoint.matching import KnownSlow, PatternTooSlow, expression
from checkpoint.matching.apart import Apart, Slow
from checkpoint.matching.cost import Ways, ways
from checkpoint.matching.expression import LONG, LONGEST_PATTERN, STEPS
from checkpoint.patterns import matches, pattern_problems
from reliability.hostile.patterns import ENDLESS, MOMENT, USUAL, trials
from reliability.hostile.trial import carried_out
from surgery import quantize
from surgery.scheme import Group, Scheme

ROOT = Path(__file__).parent.parent

UNBOUNDED = {
    ("compressed_tensors_releases.json", r"^[0-9]+(x[0-9]+)*(?![\s\S])"),
    ("fidelity_languages.schema.json", r"^[^\W\d_A-Z]+'?( [^\W\d_A-Z]+'?)*(?![\s\S])"),
    (
        "manifest.schema.json",
        r"^(?!/)(?!(?:[^/]*/)*\.{0,2}(?:/|(?![\s\S])))[^\\\u0000-\u001f\u007f]+(?![\s\S])",
    ),
}
"""Linear, which their parse does not prove: what is repeated begins or ends with a character that it has once."""


@pytest.mark.parametrize("pattern", USUAL)
def test_what_people_write_needs_no_watching(pattern: str) -> None:
    assert isinstance(expression(pattern), re.Pattern)


@pytest.mark.parametrize("number", [0, 1, len(ENDLESS)])
def test_what_takes_for_ever_is_refused_by_name(number: int) -> None:
    carried_out([*trials()][number])


def test_what_is_asked_here_takes_no_longer_than_a_moment() -> None:
    carried_out(next(trial for trial in trials() if trial.name.startswith("what is asked here")))


@pytest.mark.parametrize(
    "pattern, expected",
    [
        ("abc", Ways(1, 0)),
        (".*", Ways(1, 0)),  # the end of it is the end
        (".*a", Ways(1, 1)),
        (".*a.*b.*c", Ways(1, 3)),
        ("(a|b)x", Ways(1, 0)),  # `re` itself makes one set of a and b
        ("(a|b|cd)x", Ways(3, 0)),
        (r"x\.\d+\.y", Ways(1, 0)),  # enclosed by what it cannot take
        (r"x1\d+\.y", Ways(1, 1)),
        (r"(?i)x\.\d+\.y", Ways(1, 1)),  # flags can change what a set takes
        ("(ab)?c", Ways(2, 0)),
        ("(a|bc){2}d", Ways(4, 0)),
        ("(a+)+", Ways(inf, 0)),
        (r"(.*)\1x", Ways(1, 2)),
    ],
)
def test_the_ways_of_a_pattern(pattern: str, expected: Ways) -> None:
    assert ways(pattern) == expected


PARTS = st.sampled_from(
    [".*", "a*", r"\w*?", "a", "(a|aa)", "(a|b)?", "[ab]{0,9}", r"\d*", "a{2}", "(?:ab)*", "1", "(?=.*a)", "#"]
)


@given(st.lists(PARTS, min_size=1, max_size=5).map("".join), st.sampled_from("a1b"))
@settings(max_examples=60, deadline=None)
def test_whatever_is_below_the_bound_is_quick_on_the_worst_of_names(pattern: str, letter: str) -> None:
    if ways(f"{pattern}#").at(LONG) <= STEPS:
        begun = time.process_time()
        re.compile(f"{pattern}#").match(letter * LONG)
        assert time.process_time() - begun < MOMENT


def test_a_pattern_that_was_too_slow_counts_as_none_from_then_on() -> None:
    pattern = r"(\w+\.?)+$once"
    with pytest.raises(PatternTooSlow, match="takes longer than 2 s"):
        expression(pattern).match("model.layers.0.mlp.experts.0.up_proj" * 2)
    with pytest.raises(KnownSlow):
        expression(pattern)
    assert [problem.code for problem in pattern_problems([f"re:{pattern}"])] == ["pattern-slow"]


def test_a_command_that_writes_is_refused_by_name(tmp_path: Path) -> None:
    folder = packed_llama(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    draft = Draft.of(open_checkpoint(folder))
    with pytest.raises(PatternTooSlow, match=r"x\+x\+"):
        any(matches(r"re:(\w*x+x+)+y|(\w+\.?)+$x+x+", name) for name in draft.tensors)
    assert quantize(draft, [Group(("Linear",), Scheme(4, 32))]).problems  # it is packed already


def test_a_pattern_of_a_page_is_one_and_one_of_a_book_is_none() -> None:
    assert expression("a" * 3000).match("a" * 3000)
    with pytest.raises(re.error, match="65,537 characters"):
        expression("a" * (LONGEST_PATTERN + 1))


def test_the_other_process_says_what_re_says_and_is_started_again() -> None:
    apart = Apart()
    assert apart.match("a.c", ["abc", "ab\n", "\ud800"], 5)[0] == [True, False, False]
    with pytest.raises(re.error, match="missing"):
        apart.match("(", [], 5)
    first = apart._started().pid
    with pytest.raises(Slow):
        apart.match("(a+)+$", ["a" * 60 + "b"], 0.2)
    assert apart._started().pid == first  # a signal stopped the match, not the process
    os.kill(first, 9)
    with suppress(Slow):  # where its death shows only when it is asked
        assert apart.match("b", ["b"], 5)[0] == [True]
    assert apart.match("b", ["b"], 5)[0] == [True]
    assert apart._started().pid != first
    apart.close()


def test_patterns_that_come_with_the_package_need_no_watching() -> None:
    found = [
        (path.name, pattern)
        for folder in ("verify/engines", "checkpoint/families", "schemas", "cards")
        for path in sorted((ROOT / folder).rglob("*.json"))
        for pattern in _patterns(json.loads(path.read_text()))
    ]
    assert len(found) > 20
    assert {one for one in found if ways(one[1]).at(LONG) > STEPS} == UNBOUNDED


@pytest.mark.parametrize("pattern", [pattern for _, pattern in sorted(UNBOUNDED)])
@pytest.mark.parametrize("text", ["1x", "a ", "a/", "/", "x", "a' ", ".../", "1"])
def test_those_without_a_bound_are_quick_on_what_they_repeat(pattern: str, text: str) -> None:
    begun = time.process_time()
    for end in ("", "!", "\n", " ", "/"):
        re.compile(pattern).match(text * 20_000 + end)
    assert time.process_time() - begun < 1


def _patterns(document: object, key: str = "") -> list[str]:
    if isinstance(document, dict):
        return [one for name, value in document.items() for one in _patterns(value, name)]
    if isinstance(document, list):
        return [one for value in document for one in _patterns(value, key)]
    return [document] if isinstance(document, str) and key in ("pattern", "unquantized") else []
