"""What a number of prompts can tell: against tables, exact counts, and simulations whose truth is known."""

from __future__ import annotations

import math
from importlib.util import find_spec

import numpy as np
import pytest

from fidelity.noise import FEWEST, Trust, difference, influences, needed, sign_test
from serving.bootstrap import paired_interval, student, widened

QUICK = Trust(resamples=2_000)


@pytest.mark.parametrize(
    ("freedom", "expected"),  # t tables, two-sided 95 % and 99 %
    [
        (5, (2.5706, 4.0321)),
        (7, (2.3646, 3.4995)),
        (10, (2.2281, 3.1693)),
        (29, (2.0452, 2.7564)),
        (100, (1.9840, 2.6259)),
    ],
)
def test_quantiles_are_those_of_students_tables(freedom: int, expected: tuple[float, float]) -> None:
    assert student(0.975, freedom) == pytest.approx(expected[0], rel=1e-3)
    assert student(0.995, freedom) == pytest.approx(expected[1], rel=5e-3)


@pytest.mark.skipif(find_spec("scipy") is None, reason="scipy is not installed")
def test_an_interval_is_scipys_bootstrap_at_the_same_level() -> None:
    from scipy.stats import bootstrap

    values = np.random.default_rng(3).exponential(size=30)
    theirs = bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=5).confidence_interval
    ours = paired_interval(values.tolist(), resamples=20_000, seed=7)
    assert ours == pytest.approx(tuple(theirs), rel=0.02)


@pytest.mark.parametrize(
    ("up", "down", "expected"),
    [(5, 0, 0.0625), (6, 0, 0.03125), (0, 6, 0.03125), (3, 3, 1.0), (9, 1, 0.021484375), (1, 0, 1.0), (0, 0, 1.0)],
)
def test_the_sign_test_counts_exactly(up: int, down: int, expected: float) -> None:
    assert sign_test([1.0] * up + [-1.0] * down + [0.0] * 4) == expected


@pytest.mark.parametrize("draw", ["normal", "skewed"])
@pytest.mark.parametrize("n", [8, 30])
def test_intervals_hold_the_truth_as_often_as_they_say(draw: str, n: int) -> None:
    """400 experiments whose true mean is 0; a right interval leaves it out in 20 of them, give or take 9."""
    random = np.random.default_rng(11)
    held = 0
    for seed in range(400):
        values = random.normal(size=n) if draw == "normal" else random.gamma(2.0, size=n) - 2.0
        low, high = paired_interval(values.tolist(), level=widened(0.95, n), resamples=1_000, seed=seed)
        held += low <= 0 <= high
    assert (0.92 if draw == "normal" else 0.88) <= held / 400 <= 0.98


def test_an_interval_by_plain_percentiles_would_be_too_narrow_for_few() -> None:
    values = np.random.default_rng(2).normal(size=8).tolist()
    plain = paired_interval(values, resamples=2_000, seed=0)
    wide = paired_interval(values, level=widened(0.95, 8), resamples=2_000, seed=0)
    assert wide[0] < plain[0] < plain[1] < wide[1]


def test_a_candidate_equal_to_the_other_differs_in_nothing() -> None:
    found = difference([0.3] * 10, [0.3] * 10, QUICK, rate=False)
    assert (found.value, found.low, found.high, found.verdict, found.needed) == (0.0, 0.0, 0.0, "equal", None)


@pytest.mark.parametrize(("sign", "verdict"), [(1, "higher"), (-1, "lower")])
def test_a_difference_beyond_noise_is_told_with_its_direction(sign: int, verdict: str) -> None:
    one = [sign * (0.1 + 0.01 * number) for number in range(10)]
    found = difference(one, [0.0] * 10, QUICK, rate=False)
    assert found.verdict == verdict
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(sign * 0.145)


def test_a_difference_within_noise_is_called_noise_and_says_what_would_tell_it() -> None:
    one = [0.5, -0.4] * 10  # mean 0.05, spread 0.4617
    found = difference(one, [0.0] * 20, QUICK, rate=False)
    assert found.verdict == "noise"
    assert found.needed == math.ceil((1.959964 + 0.841621) ** 2 * (0.45**2 * 20 / 19) / 0.05**2)


def test_as_many_prompts_as_needed_tell_a_difference_in_four_of_five_cases() -> None:
    random = np.random.default_rng(4)
    count = needed((0.3 + random.normal(size=5_000)).tolist(), 0.95)
    assert count is not None
    told = sum(
        difference((0.3 + random.normal(size=count)).tolist(), [0.0] * count, Trust(resamples=500), rate=False).verdict
        == "higher"
        for _ in range(200)
    )
    assert 0.70 <= told / 200 <= 0.90


def test_few_prompts_tell_nothing_though_all_fall_to_one_side() -> None:
    assert difference([1.0, 1.1, 1.2, 1.3, 1.4], [0.0] * 5, QUICK, rate=False).verdict == "too few"
    assert difference([1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [0.0] * FEWEST, QUICK, rate=False).verdict == "higher"
    assert difference([1.0], [0.0], QUICK, rate=False).verdict == "too few"


@pytest.mark.parametrize(("changed", "verdict"), [(5, "noise"), (6, "higher")])
def test_a_rate_differs_only_where_the_sign_test_agrees(changed: int, verdict: str) -> None:
    """Five of thirty that fell to one side: the bootstrap alone would call it a difference, p = 1/16 does not."""
    one = [1.0] * changed + [0.0] * (30 - changed)
    found = difference(one, [0.0] * 30, Trust(), rate=True)
    assert found.verdict == verdict
    assert found.value == pytest.approx(changed / 30)


def test_a_weighted_difference_is_that_of_the_weighted_means() -> None:
    one, other, weights = [0.4, 0.1, 0.9], [0.2, 0.3, 0.5], [10.0, 60.0, 30.0]
    found = difference(one, other, QUICK, weights=weights, rate=False)
    expected = (0.4 * 10 + 0.1 * 60 + 0.9 * 30) / 100 - (0.2 * 10 + 0.3 * 60 + 0.5 * 30) / 100
    assert found.value == pytest.approx(expected)


def test_the_spread_of_a_weighted_mean_is_that_of_drawing_prompts_anew() -> None:
    """Against the plain bootstrap of the ratio itself: draw prompts, divide sums of weights."""
    random = np.random.default_rng(9)
    deltas, weights = random.normal(0.2, 1.0, 60), random.integers(5, 200, 60).astype(float)
    rows = random.integers(0, 60, (5_000, 60))
    drawn = (deltas[rows] * weights[rows]).sum(axis=1) / weights[rows].sum(axis=1)
    shares = influences(deltas.tolist(), weights.tolist())
    assert np.std(shares, ddof=1) / math.sqrt(60) == pytest.approx(drawn.std(), rel=0.1)


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises((ValueError, ZeroDivisionError)):
        difference([], [], QUICK, rate=False)
