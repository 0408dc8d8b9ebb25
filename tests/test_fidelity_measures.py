"""What is told of a reply by its text: tables of cases, each worked by hand."""

from __future__ import annotations

import pytest

from fidelity.measures import common_prefix, distinct_2, first_sentence, is_empty, is_same, loops, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's 3.", ["It", "'", "s", "3", "."]),
        ("snake_case", ["snake", "_", "case"]),
        ("Où est-ce ?", ["Où", "est", "-", "ce", "?"]),
        (" \n ", []),
    ],
)
def test_words_are_runs_of_letters_and_digits_and_every_other_sign(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b c d", 1.0),  # ab bc cd
        ("a b a b a", 0.5),  # ab ba ab ba: 2 of 4
        ("a a a a a", 0.25),  # aa four times
        ("The the THE", 0.5),  # upper and lower case alike: one of two
        ("a b, a b", 0.75),  # ab b, ,a ab: 3 of 4
        ("one", None),
        ("", None),
    ],
)
def test_distinct_2_is_the_part_of_pairs_that_are_different(text: str, expected: float | None) -> None:
    assert distinct_2(text) == expected


ITEMS = "one two three four five six seven eight nine ten eleven twelve thirteen"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yes " * 12, True),  # period 1, twelve words
        ("yes " * 11, False),  # eleven words are no loop yet
        ("the cat sat on " * 3, True),  # 12 words, three times
        ("the cat sat " * 3, False),  # three times, but 9 words
        ("the cat sat " * 4, True),
        ("a b c d e f " * 2, False),  # twice may be a refrain
        ("a b c d e f " * 3, True),
        ("Well: " + "a b c d e f " * 3 + "a b c", True),  # cut off within the fourth
        ("a b c d e f " * 3 + "and so on", False),  # it came out of it
        (f"{ITEMS} " * 3, True),  # period 13
        ("- - - - - - - - - - - -", True),
        ("0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15", False),
        ("I am. I am. I am. I am.", True),  # I am . four times
        ("ha " * 4, False),
        ("", False),
    ],
)
def test_a_loop_is_the_same_words_three_times_in_a_row_up_to_the_end(text: str, expected: bool) -> None:
    assert loops(text) is expected


@pytest.mark.parametrize("period", [100, 101])
def test_loops_of_up_to_a_hundred_words_are_found(period: int) -> None:
    text = " ".join(f"w{number}" for number in range(period)) + " "
    assert loops(text * 3) is (period == 100)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Paris. It lies on the Seine.", "Paris."),
        ("It is 3.14. Really.", "It is 3.14."),
        ("1. Apple\n2. Pear", "1. Apple"),
        ("Is it? Yes!", "Is it?"),
        ('He said "No." Then he left.', 'He said "No."'),
        ("  A line\nand another", "A line"),
        ("two  blanks,\tand a tab. x", "two blanks, and a tab."),
        ("no end", "no end"),
        ("天空是蓝色的。因为", "天空是蓝色的。"),
        ("", ""),
    ],
)
def test_the_first_sentence_ends_with_its_mark_or_its_line(text: str, expected: str) -> None:
    assert first_sentence(text) == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 5, 3], 1),
        ([1, 2], [1, 2, 3], 2),
        ([], [7], 0),
        ([], [], None),
        ("abc", "abd", 2),
    ],
)
def test_two_replies_part_where_they_differ_first_or_where_one_ends(
    one: list[int], other: list[int], expected: int | None
) -> None:
    assert common_prefix(one, other) == common_prefix(other, one) == expected


def test_the_same_reply_may_have_other_white_space_around_it_and_none_other_within() -> None:
    assert is_same(" Paris.\n", "Paris.")
    assert not is_same("Paris  .", "Paris .")


def test_white_space_alone_is_an_empty_reply() -> None:
    assert is_empty(" \n")
    assert not is_empty(".")
