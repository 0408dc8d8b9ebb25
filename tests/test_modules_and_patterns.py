"""Which module owns a tensor, and which entries cover a module."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint import group_modules, split_name
from checkpoint.patterns import Patterns, first_match, matches, pattern_problems


@pytest.mark.parametrize(
    "tensor, expected",
    [
        ("model.layers.0.mlp.up_proj.weight", ("model.layers.0.mlp.up_proj", "weight")),
        ("model.layers.0.mlp.up_proj.weight_packed", ("model.layers.0.mlp.up_proj", "weight_packed")),
        ("lm_head.weight_shape", ("lm_head", "weight_shape")),
        ("model.layers.0.q_proj.bias", ("model.layers.0.q_proj", "bias")),
        ("model.layers.0.mlp.experts.gate_up_proj", ("model.layers.0.mlp.experts.gate_up_proj", "")),
        ("model.layers.0.linear_attn.A_log", ("model.layers.0.linear_attn.A_log", "")),
        ("weight", ("weight", "")),
        (".weight", (".weight", "")),
    ],
)
def test_a_tensor_belongs_to_the_module_before_its_suffix(tensor: str, expected: tuple[str, str]) -> None:
    assert split_name(tensor) == expected


def test_tensors_of_a_module_stand_together_in_first_seen_order() -> None:
    modules = group_modules(["b.weight_packed", "a.weight", "b.weight_scale", "a.bias", "A_log"])
    assert list(modules) == ["b", "a", "A_log"]
    assert modules["b"].tensors == {"weight_packed": "b.weight_packed", "weight_scale": "b.weight_scale"}
    assert [(module.packed, module.dense) for module in modules.values()] == [
        (True, False),
        (False, True),
        (False, True),
    ]


@pytest.mark.parametrize(
    "entry, name, expected",
    [
        ("lm_head", "lm_head", True),
        ("lm_head", "model.lm_head", False),
        ("lm_head", "lm_head2", False),
        ("re:lm_head", "lm_head2", True),
        ("re:lm_head", "model.lm_head", False),
        ("re:.*lm_head$", "model.lm_head", True),
        ("re:", "anything", True),
        ("l.*", "lm_head", False),
    ],
)
def test_an_entry_is_a_whole_name_or_an_expression_matched_at_the_start(entry: str, name: str, expected: bool) -> None:
    assert matches(entry, name) is expected
    assert first_match(["nothing", entry], name) == (entry if expected else None)


@pytest.mark.parametrize("entry", ["re:(", "re:*", "re:a{99999999999}", "re:" + "(" * 5000 + ")" * 5000])
def test_an_expression_that_cannot_be_compiled_is_a_problem_and_no_crash(entry: str) -> None:
    found = pattern_problems(["lm_head", entry, "re:.*"], "config.json")
    assert [(problem.code, problem.file) for problem in found] == [("pattern-invalid", "config.json")]


atoms = st.sampled_from(
    ["a", "b", ".", r"\.", ".*", "[0-9]", "[^0-9]", r"\d", "1", "[1-3]", "2*", "(?:a|b)", "a?", "$", "^"]
)
expressions = st.lists(atoms, max_size=6).map(lambda parts: "re:" + "".join(parts))
names = st.text(st.sampled_from("ab.0129"), max_size=6)


@given(st.lists(expressions | names, max_size=5), st.lists(names, max_size=30))
@settings(max_examples=300, deadline=None)
def test_many_names_get_the_answers_that_each_would_get_alone(entries: list[str], asked: list[str]) -> None:
    patterns = Patterns(entries)
    assert [patterns.first(name) for name in asked] == [first_match(entries, name) for name in asked]
