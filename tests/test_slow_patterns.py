"""Regular expressions of strangers: what `re` says, and never for long."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

import pytest
from building import edit_json, packed_llama
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.matching import PatternTooSlow
from checkpoint.patterns import compiled, pattern_problems
from verify import verify

SLOW = (r"(a+)+$", r"(a|aa)+$", r"(.*a){20}$", r"(\w+\w+)+$", r"^(([a-z])+.)+[A-Z]([a-z])+$")
ORDINARY = (
    r".*mlp\.experts\.\d+\.(gate|up|down)_proj$",
    r"^mtp.*",
    r"model\.layers\.(?:[0-9]|1[0-5])\..*",
    r".*self_attn\.[qkv]_proj",
    r"(?i).*LM_HEAD$",
    r"(?!.*shared).*experts.*",
    r"(model)\.(layers)\.\d+\.\2",
)
NAMES = (
    "lm_head",
    "mtp.fc",
    "model.layers.7.mlp.experts.31.gate_proj",
    "model.layers.15.self_attn.q_proj",
    "model.layers.2.layers",
    "model.layers.3.mlp.shared_expert.up_proj",
)


@pytest.mark.parametrize("pattern", SLOW)
def test_one_that_takes_too_long_is_given_up(pattern: str) -> None:
    matcher = compiled(f"re:{pattern}")
    begun = time.process_time()
    with suppress(PatternTooSlow):  # or it finds a way that is quick
        if matcher is not None:
            matcher.match("a" * 60 + "!")
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("pattern", ORDINARY)
def test_an_ordinary_one_says_what_re_says(pattern: str) -> None:
    matcher = compiled(f"re:{pattern}")
    assert matcher is not None
    assert [bool(matcher.match(name)) for name in NAMES] == [bool(re.match(pattern, name)) for name in NAMES]


PIECES = st.sampled_from(
    ["a", "b", ".", "[ab]", "(a|b)", "a?", "b*", "(ab)+", r"\.", r"\d", "(?:a|ab)", "$", "^", "a{2,3}", "(?=a)"]
)


@given(st.lists(PIECES, min_size=1, max_size=6).map("".join), st.text("ab.1", max_size=12))
@settings(max_examples=300, deadline=None)
def test_any_one_says_what_re_says(pattern: str, name: str) -> None:
    matcher = compiled(f"re:{pattern}")
    assert matcher is not None
    assert bool(matcher.match(name)) == bool(re.match(pattern, name))


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "[", "(?P<x>a)(?P<x>b)", "*a"])
def test_one_that_is_none_is_told(pattern: str) -> None:
    (problem,) = pattern_problems([f"re:{pattern}"])
    assert problem.code == "pattern-invalid"


def test_verify_tells_a_slow_one_and_ends(tmp_path: Path) -> None:
    folder = packed_llama(tmp_path / "model")
    slow = r"re:(.+)+\.(.+)+_zzz$"
    edit_json(folder / "config.json", lambda config: config["quantization_config"]["ignore"].append(slow))
    begun = time.monotonic()
    told = [one for one in verify(folder).findings if one.rule == "C11"]
    assert time.monotonic() - begun < 60
    assert "takes longer" in told[0].found


def test_verify_says_nothing_of_ordinary_ones(tmp_path: Path) -> None:
    assert not verify(packed_llama(tmp_path / "model")).findings
