"""The paired bootstrap interval: against Student's tables, counts by hand, theory, and simulations of known truth."""

from __future__ import annotations

import math
from random import Random

import pytest

from serving import paired_interval, widened
from serving.bootstrap import student


def test_an_interval_is_a_point_where_all_differences_are_alike() -> None:
    assert paired_interval([2.0] * 7, seed=1) == (2.0, 2.0)


def test_an_interval_is_the_same_for_the_same_seed() -> None:
    random = Random(3)
    values = [random.gauss(0, 1) for _ in range(20)]
    assert paired_interval(values, seed=1) == paired_interval(values, seed=1) != paired_interval(values, seed=2)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(4, 2.776), (5, 2.571), (9, 2.262), (29, 2.045), (120, 1.980), (10**6, 1.960)]
)
def test_an_interval_leans_on_quantiles_that_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student(0.975, freedom) == pytest.approx(quantile, abs=0.002)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_interval_of_very_few_values_is_their_whole_range(count: int) -> None:
    values = [1.0, 2.0, 4.0][:count]
    assert paired_interval(values, level=widened(0.95, count), seed=1) == (values[0], values[-1])


@pytest.mark.parametrize(("count", "fewest", "most"), [(6, 8, 40), (10, 8, 36), (40, 8, 34)])
def test_an_interval_widened_has_the_truth_as_often_as_it_says(count: int, fewest: int, most: int) -> None:
    """Of 400 intervals at 95 % of normal differences, 20 miss the true mean, give or take 4.4 and what six values
    do not show. Plain percentiles miss 60 at 6 values, and 40 at 10."""
    random = Random(count)
    missed = 0
    for number in range(400):
        values = [random.gauss(1, 2) for _ in range(count)]
        low, high = paired_interval(values, level=widened(0.95, count), resamples=2000, seed=number)
        missed += not low <= 1 <= high
    assert fewest <= missed <= most


def test_an_interval_of_two_values_has_the_quarters_that_can_be_counted() -> None:
    """Of (0, 1) a resample's mean is 0, 0.5 or 1, with chances of 1/4, 1/2 and 1/4."""
    assert paired_interval([0.0, 1.0], level=0.4, seed=1) == (0.5, 0.5)
    assert paired_interval([0.0, 1.0], level=0.6, seed=1) == (0.0, 1.0)


def test_an_interval_is_as_wide_as_theory_says() -> None:
    """For many values the percentiles are those of a normal distribution: mean ± 1.96 s / sqrt(n)."""
    random = Random(5)
    values = [random.gauss(0, 1) for _ in range(2000)]
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) ** 2)
    low, high = paired_interval(values, seed=1)
    assert low == pytest.approx(mean - 1.96 * spread, abs=0.1 * spread)
    assert high == pytest.approx(mean + 1.96 * spread, abs=0.1 * spread)


@pytest.mark.parametrize(("values", "level"), [([], 0.95), ([math.nan], 0.95), ([1.0], 0.0), ([1.0], 1.1)])
def test_an_interval_of_nothing_is_refused(values: list[float], level: float) -> None:
    with pytest.raises(ValueError, match=r"differences|level"):
        paired_interval(values, level=level, seed=1)
