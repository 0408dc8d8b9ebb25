"""Folding: what a pattern says, and that nothing is lost by writing it."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.folder import without_collection
from checkpoint.folding import Folded, fold, unfold


def patterns(names: list[str]) -> list[str]:
    return [entry.pattern for entry in fold((name, None) for name in names)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["lm_head"], ["lm_head"]),
        (["layers.3.norm"], ["layers.3.norm"]),
        (["layers.0.norm", "layers.1.norm", "layers.2.norm"], ["layers.{0-2}.norm"]),
        (["layers.0.norm", "layers.2.norm"], ["layers.{0,2}.norm"]),
        (["layers.10.norm", "layers.2.norm", "layers.9.norm"], ["layers.{2,9-10}.norm"]),
        (["a.0.x.0", "a.0.x.1", "a.1.x.0", "a.1.x.1"], ["a.{0-1}.x.{0-1}"]),
        (["a.0.x.0", "a.0.x.1", "a.1.x.0"], ["a.0.x.{0-1}", "a.1.x.0"]),
        (["a.0.x.0", "a.1.x.0", "a.2.x.7", "a.2.x.9"], ["a.{0-1}.x.0", "a.2.x.{7,9}"]),
        (["layers.0.norm", "layers.0.proj", "layers.1.norm"], ["layers.{0-1}.norm", "layers.0.proj"]),
        (["layers.0", "layer0.1", "norm1.w"], ["layers.0", "layer0.1", "norm1.w"]),
        (["a.00.x", "a.0.x", "a.1.x"], ["a.00.x", "a.{0-1}.x"]),
        (["a.{0-3}.x"], ["a.{{0-3}}.x"]),
        ([], []),
    ],
)
def test_names_fold_into_patterns_in_first_seen_order(names: list[str], expected: list[str]) -> None:
    assert patterns(names) == expected


def test_names_in_different_states_do_not_share_an_entry() -> None:
    states = [("layers.0.up", "packed"), ("layers.1.up", "dense"), ("layers.2.up", "packed")]
    assert fold(states) == [Folded("layers.{0,2}.up", "packed", 2), Folded("layers.1.up", "dense", 1)]


def test_experts_of_the_body_fold_over_layers_and_experts() -> None:
    names = [f"layers.{layer}.experts.{e}.up" for layer in (0, 1, 2, 4, 5, 6) for e in range(256)]
    assert fold((name, 4) for name in names) == [Folded("layers.{0-2,4-6}.experts.{0-255}.up", 4, 1536)]


def test_one_odd_expert_stands_alone() -> None:
    names = [(f"layers.{layer}.experts.{e}.up", (layer, e) == (1, 2)) for layer in range(4) for e in range(4)]
    assert [entry.pattern for entry in fold(names)] == [
        "layers.{0,2-3}.experts.{0-3}.up",
        "layers.1.experts.{0-1,3}.up",
        "layers.1.experts.2.up",
    ]


def test_a_name_given_twice_counts_twice() -> None:
    entries = fold([("a.0", "s"), ("a.0", "s"), ("a.1", "s")])
    assert [(entry.pattern, entry.count) for entry in entries] == [("a.{0-1}", 2), ("a.0", 1)]


parts = st.one_of(
    st.integers(0, 12).map(str),
    st.sampled_from(["layers", "up", "00", "007", "{3}", "{{0-1}}", "{1,2-3}", "", "٣", "1234567890123", "#", "{x}"]),
)
items = st.lists(st.tuples(st.lists(parts, min_size=1, max_size=4).map(".".join), st.integers(0, 2)), max_size=60)


@given(items)
def test_unfolding_gives_back_every_name_in_its_state(pairs: list[tuple[str, int]]) -> None:
    entries = fold(pairs)
    assert Counter((name, entry.state) for entry in entries for name in unfold(entry.pattern)) == Counter(pairs)
    assert all(sum(1 for _ in unfold(entry.pattern)) == entry.count for entry in entries)


@given(st.sets(st.integers(0, 20), min_size=1), st.sets(st.integers(0, 20), min_size=1), st.randoms())
def test_a_product_of_sets_is_one_entry_in_whatever_order(a: set[int], b: set[int], random: object) -> None:
    names = [f"layers.{i}.experts.{j}.up" for i in a for j in b]
    random.shuffle(names)  # type: ignore[attr-defined]
    assert len(patterns(names)) == 1


def test_a_hundred_thousand_names_fold_in_half_a_second() -> None:
    names = [
        f"model.layers.{n}.mlp.experts.{e}.{p}" for n in range(64) for e in range(512) for p in ("up", "gate", "down")
    ]
    assert len(names) > 98_000

    def seconds() -> float:
        start = time.process_time()
        assert len(fold((name, ("packed", 4, 128)) for name in names)) == 3
        return time.process_time() - start

    with without_collection():  # what other tests keep in memory is not for this one to walk through
        assert min(seconds() for _ in range(3)) < 0.5
