"""Joining conversations to sequences: nothing lost, nothing invented, sizes and shares as asked."""

from __future__ import annotations

from itertools import count
from math import fsum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgery.calibration.filling import Conversation, Filled, Filler

LENGTHS = st.lists(st.lists(st.integers(1, 40), max_size=60), min_size=1, max_size=4)


def supplies_of(lengths: list[list[int]]) -> list[list[Conversation]]:
    """Conversations of these lengths by source; no token id occurs twice."""
    fresh = count()
    return [
        [Conversation(number, b"", [next(fresh) for _ in range(length)]) for length in own]
        for number, own in enumerate(lengths)
    ]


def tokens_by_source(filled: list[Filled], sources: int) -> list[int]:
    parts = [part for sequence in filled for part in sequence.parts]
    return [sum(part.tokens for part in parts if part.conversation.source == number) for number in range(sources)]


@st.composite
def tasks(draw: st.DrawFn) -> tuple[list[list[Conversation]], list[float], int, int, int | None]:
    supplies = supplies_of(draw(LENGTHS))
    shares = [draw(st.floats(0.01, 100)) for _ in supplies]
    least = draw(st.integers(1, 100))
    most = draw(st.none() | st.integers(least, least + 50))
    return supplies, shares, draw(st.integers(0, 30)), least, most


@given(tasks())
@settings(deadline=None)
def test_sequences_are_whole_conversations_cut_only_at_max_tokens(
    task: tuple[list[list[Conversation]], list[float], int, int, int | None],
) -> None:
    supplies, shares, count, least, most = task
    filler = Filler([iter(supply) for supply in supplies], shares)
    filled = [*filler.fill(3, least, most), *filler.fill(count, least, most)]
    for sequence in filled:
        assert least <= len(sequence.ids) <= (most or len(sequence.ids))
        given_ids = [token for part in sequence.parts for token in part.conversation.ids]
        assert list(sequence.ids) == given_ids[: len(sequence.ids)]
        lost = len(given_ids) - len(sequence.ids)
        assert lost == sum(part.lost for part in sequence.parts) == sequence.parts[-1].lost
        assert lost == (0 if most is None else max(0, len(given_ids) - most))
        assert len(given_ids) - len(sequence.parts[-1].conversation.ids) < least
    used = [token for sequence in filled for token in sequence.ids]
    assert len(set(used)) == len(used)


@given(tasks())
@settings(deadline=None)
def test_a_source_is_taken_from_its_first_conversation_on_without_a_gap(
    task: tuple[list[list[Conversation]], list[float], int, int, int | None],
) -> None:
    supplies, shares, count, least, most = task
    filled = Filler([iter(supply) for supply in supplies], shares).fill(count, least, most)
    for number, supply in enumerate(supplies):
        own = [part.conversation for one in filled for part in one.parts if part.conversation.source == number]
        assert own == supply[: len(own)]


@given(tasks())
@settings(deadline=None)
def test_no_source_is_ahead_of_its_share_by_more_than_one_conversation(
    task: tuple[list[list[Conversation]], list[float], int, int, int | None],
) -> None:
    supplies, shares, count, least, most = task
    filler = Filler([iter(supply) for supply in supplies], shares)
    taken = tokens_by_source(filler.fill(count, least, most), len(shares))
    if filler.exhausted:
        return
    for number, share in enumerate(shares):
        longest = max((len(conversation.ids) for conversation in supplies[number]), default=0)
        assert taken[number] <= share / fsum(shares) * sum(taken) + longest + 1e-6


@pytest.mark.parametrize(
    "shares, expected", [((60, 20, 20), (600, 200, 200)), ((1, 1), (500, 500)), ((3, 1), (750, 250))]
)
def test_shares_of_small_conversations_are_exact(shares: tuple[float, ...], expected: tuple[int, ...]) -> None:
    supplies = supplies_of([[10] * 100] * len(shares))
    filled = Filler([iter(supply) for supply in supplies], shares).fill(10, 100, 100)
    assert tuple(tokens_by_source(filled, len(shares))) == expected


def test_sources_that_remain_keep_their_shares_to_one_another_when_one_is_exhausted() -> None:
    supplies = supplies_of([[10] * 5, [10] * 100, [10] * 100])
    filler = Filler([iter(supply) for supply in supplies], (40, 40, 20))
    taken = tokens_by_source(filler.fill(5, 100, 100), 3)
    assert filler.exhausted == {0}
    assert taken == [50, 300, 150]


def test_too_little_text_gives_fewer_sequences_and_no_short_one() -> None:
    filler = Filler([iter(supply) for supply in supplies_of([[30] * 5])], (1,))
    assert [len(sequence.ids) for sequence in filler.fill(3, 60)] == [60, 60]
    assert filler.exhausted == {0}
