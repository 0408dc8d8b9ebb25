"""Figures from times and counts: worked by hand, no clock involved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency import Candidate, Cell, Result, Round, Settings, Spread, Turn, differences, drafts, turn_of, values
from latency.prompts import sentences, text
from latency.turns import tokens_per_second
from serving import Answer, Piece, Server, Speculation, Stream, Usage

MS = 1_000_000


def stream(
    *pieces: tuple[int, int | None], tokens: int, sent: int = 0, ended: int = 100, by_usage: bool = True
) -> Stream:
    """`pieces`: milliseconds and running counts."""
    parts = tuple(Piece(at * MS, "x", counted) for at, counted in pieces)
    answer = Answer("x", "length", Usage(7, tokens, 4) if by_usage else None)
    return Stream(sent * MS, parts, ended * MS, answer, tokens, by_usage)


def test_a_turn_of_four_tokens_that_come_one_by_one() -> None:
    turn = turn_of(stream((30, None), (40, None), (50, None), (60, None), tokens=4, sent=10, ended=61))
    assert turn == Turn(20.0, 51.0, 10.0, 7, 4, 4, True)


def test_several_tokens_in_a_piece_are_counted_by_usage_not_by_pieces() -> None:
    """12 tokens in 3 pieces, as speculative decoding brings them: 11 tokens after the first in 44 ms."""
    assert turn_of(stream((10, None), (30, None), (54, None), tokens=12)).token == 4.0


def test_with_a_running_count_the_first_piece_may_have_several_tokens() -> None:
    """3 tokens at once, then 8 more in 40 ms."""
    assert turn_of(stream((10, 3), (30, 7), (50, 11), tokens=11)).token == 5.0


def test_tokens_that_came_without_a_piece_of_their_own_are_not_timed_with_a_running_count() -> None:
    """The last of 9 tokens was counted at the end only, after the last piece: 7 tokens in 35 ms."""
    assert turn_of(stream((10, 1), (45, 8), tokens=9)).token == 5.0


@pytest.mark.parametrize("pieces", [(), ((10, None),)])
def test_a_turn_in_one_piece_has_no_time_per_token(pieces: tuple[tuple[int, int | None], ...]) -> None:
    turn = turn_of(stream(*pieces, tokens=5))
    assert turn.token is None
    assert turn.first == (10.0 if pieces else None)


def test_pieces_that_were_counted_for_tokens_are_said_to_be() -> None:
    turn = turn_of(stream((10, None), (20, None), tokens=2, by_usage=False))
    assert (turn.counted, turn.prompt_tokens, turn.cached, turn.output_tokens) == (False, None, None, 2)


def test_throughput_is_of_all_streams_from_the_first_sent_to_the_last_ended() -> None:
    """40 tokens from 100 to 300 ms."""
    streams = [stream(tokens=10, sent=100, ended=250), stream(tokens=30, sent=120, ended=300)]
    assert tokens_per_second(streams) == pytest.approx(200)


@given(st.lists(st.floats(0.1, 1e6), min_size=1))
def test_median_and_quartiles_are_numpys(found: list[float]) -> None:
    spread = Spread.of(found)
    assert spread is not None
    low, middle, high = np.quantile(found, [0.25, 0.5, 0.75])
    assert (spread.low, spread.median, spread.high) == pytest.approx((low, middle, high))
    assert spread.count == len(found)


def test_of_nothing_there_is_no_spread() -> None:
    assert Spread.of([]) is None


def rounds(*milliseconds: float, streams: int = 1) -> tuple[Round, ...]:
    """Rounds whose turns took so long per token."""
    return tuple(
        Round(number, 0, tuple(Turn(50.0, 100.0, one, 7, 8, None, True) for _ in range(streams)), 1000 / one, None)
        for number, one in enumerate(milliseconds)
    )


def cell(**found: tuple[Round, ...]) -> Cell:
    return Cell(128, 1, found)


def verdicts(**found: tuple[Round, ...]) -> dict[str, str]:
    return {one.figure: one.verdict for one in differences(cell(**found), seed=0)}


def test_a_difference_beyond_the_rounds_own_is_told_with_its_size() -> None:
    """Twice as long in each round, whatever the round: the ratio is 2, half the throughput, and without doubt."""
    base = (10.0, 20.0, 15.0, 11.0, 30.0, 12.0)
    found = differences(cell(a=rounds(*base), b=rounds(*(2 * one for one in base))), seed=0)
    ratios = {one.figure: (one.ratio, one.low, one.high, one.verdict) for one in found}
    assert ratios["token_ms"] == (pytest.approx(2), pytest.approx(2), pytest.approx(2), "different")
    assert ratios["tokens_per_second"] == (pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5), "different")
    assert ratios["first_ms"][3] == "noise"


def test_a_difference_within_the_rounds_own_is_noise() -> None:
    a, b = (10.0, 12.0, 11.0, 13.0, 10.0, 12.0), (11.0, 11.0, 12.0, 12.0, 11.0, 11.0)
    assert verdicts(a=rounds(*a), b=rounds(*b))["token_ms"] == "noise"


def test_a_few_rounds_say_nothing() -> None:
    assert verdicts(a=rounds(*[10.0] * 4), b=rounds(*[20.0] * 4))["token_ms"] == "too few rounds"
    assert verdicts(a=rounds(*[10.0] * 5), b=rounds(*[20.0] * 5))["token_ms"] == "different"


def test_rounds_are_paired_by_number_and_those_without_a_partner_left_out() -> None:
    """Rounds 0 and 1 of the second candidate failed; the third to sixth are three times as long."""
    a, b = rounds(1.0, 1.0, 10.0, 20.0, 30.0, 40.0), rounds(9.0, 9.0, 30.0, 60.0, 90.0, 120.0)[2:]
    (found,) = [one for one in differences(cell(a=a, b=b), seed=0) if one.figure == "token_ms"]
    assert (found.pairs, found.ratio) == (4, pytest.approx(3))


def test_every_candidate_is_compared_with_the_first() -> None:
    found = differences(cell(a=rounds(1.0), b=rounds(2.0), c=rounds(3.0)), seed=0)
    assert {(one.candidate, one.against) for one in found} == {("b", "a"), ("c", "a")}


def test_of_several_streams_every_request_counts_and_a_round_is_their_median() -> None:
    many = rounds(10.0, 20.0, streams=3)
    assert len(values(many, "token_ms")) == 6
    assert values(many, "tokens_per_second") == [100, 50]


def test_drafts_of_all_rounds_are_added_up() -> None:
    """10 drafts of 2 with 9 + 6 accepted, and 30 drafts of 2 with 30 + 15: 60 of 80, 1.5 a step and its own."""
    one, two = Speculation(0.75, 2.5, (0.9, 0.6), 10, 20, 15), Speculation(0.75, 2.5, (1.0, 0.5), 30, 60, 45)
    plain = rounds(1.0, 1.0, 1.0)
    mixed = [replace(plain[0], speculation=one), replace(plain[1], speculation=two), plain[2]]
    assert drafts(mixed) == Speculation(0.75, 2.5, (pytest.approx(0.975), pytest.approx(0.525)), 40, 80, 60)  # type: ignore[arg-type]
    assert drafts(plain) is None


def test_drafts_by_gauges_are_averaged() -> None:
    plain = rounds(1.0, 1.0)
    gauged = [
        replace(plain[0], speculation=Speculation(0.5, 1.5)),
        replace(plain[1], speculation=Speculation(0.7, 1.7)),
    ]
    found = drafts(gauged)
    assert found is not None
    assert (found.acceptance, found.length, found.drafts) == (pytest.approx(0.6), pytest.approx(1.6), None)


def test_prompts_are_of_the_words_that_were_asked_for_and_begin_with_a_number_of_their_own() -> None:
    texts = [text(200, str(number)) for number in range(50)]
    assert {len(one.split()) for one in texts} == {200}
    assert len({one[:16] for one in texts}) == 50
    assert text(200, "a") == text(200, "a")
    assert text(0, "a").startswith("Note ")


def test_the_neutral_text_is_fifty_different_sentences() -> None:
    assert len(set(sentences())) == 50
    assert all(one.isascii() and one.endswith(".") and 8 <= len(one.split()) <= 20 for one in sentences())


def test_a_plot_has_a_panel_for_each_figure_and_names_that_cannot_be_markup(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("httpx")
    from latency.plot import draw

    name = "a <b>$x$\n\x1b"
    candidates = tuple(Candidate(one, Server("http://127.0.0.1:1", "m")) for one in (name, "b"))
    cells = tuple(Cell(128, one, {name: rounds(10.0, 12.0), "b": ()}) for one in (1, 5))
    draw(Result(candidates, Settings(), "r", cells), tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    for title in ("first token, ms", "whole turn, ms", "ms per token after the first", "tokens a second, all streams"):
        assert title in drawn
    assert "a &lt;b&gt;$x$\\n\\x1b" in drawn
