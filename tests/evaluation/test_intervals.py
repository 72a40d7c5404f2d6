"""Intervals against scipy and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from flatclr.evaluation import intervals
from flatclr.evaluation.intervals import Score, bootstrap, jackknife, mean_of, over_draws


def test_student_quantiles_are_scipys_at_every_number_of_degrees() -> None:
    degrees = [*range(1, 60), 100, 1000]
    assert [intervals.student(n) for n in degrees] == pytest.approx([stats.t.ppf(0.975, n) for n in degrees], abs=6e-4)


def test_the_bootstrap_interval_of_a_share_is_the_binomial_one() -> None:
    correct = torch.arange(2000) % 5 != 0
    score = bootstrap(mean_of(correct), 2000)
    error = math.sqrt(0.8 * 0.2 / 2000)
    # the 2.5 % quantile of 1,000 resamples has a standard error of about 0.085 of the spread
    assert score.value == pytest.approx(0.8)
    assert score.low == pytest.approx(0.8 - 1.96 * error, abs=0.3 * error)
    assert score.high == pytest.approx(0.8 + 1.96 * error, abs=0.3 * error)


@pytest.mark.parametrize("correct", [True, False])
def test_all_or_nothing_has_the_exact_binomial_interval(correct: bool) -> None:
    score = bootstrap(mean_of(torch.full((40,), correct)), 40)
    exact = stats.binomtest(40 * correct, 40).proportion_ci(method="exact")
    assert (score.low, score.high) == pytest.approx((exact.low, exact.high))


def test_bootstrap_intervals_cover_the_truth_as_often_as_they_say() -> None:
    truth, trials = 0.7, 200
    generator = torch.Generator().manual_seed(1)
    covered = 0
    for trial in range(trials):
        score = bootstrap(mean_of(torch.rand(400, generator=generator) < truth), 400, seed=trial)
        covered += score.low <= truth <= score.high
    error = math.sqrt(0.95 * 0.05 / trials)
    assert covered / trials == pytest.approx(0.95, abs=3 * error)


def test_the_jackknife_of_a_mean_has_the_textbook_error() -> None:
    values = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    score = jackknife(lambda rows: {"mean": values[rows].mean().item()}, 4000)["mean"]
    half = (score.high - score.low) / 2
    expected = 1.96 * values.std().item() / math.sqrt(4000)
    # 20 groups leave 19 degrees of freedom: the error itself is uncertain by 1 / sqrt(38)
    assert half == pytest.approx(expected, rel=3 / math.sqrt(38))


def test_student_quantiles_are_scipys() -> None:
    assert pytest.approx([stats.t.ppf(0.975, n) for n in range(1, 11)], abs=6e-4) == intervals.STUDENT


def test_draws_and_test_samples_both_widen_the_interval() -> None:
    pooled = Score(0.5, 0.48, 0.52)
    draws = [Score(0.4, 0, 1), Score(0.5, 0, 1), Score(0.6, 0, 1)]
    found = over_draws(draws, pooled)
    between = stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3)
    assert found.high - 0.5 == pytest.approx(math.hypot(between, 0.02), rel=1e-3)
    assert over_draws(draws[1:2], pooled) == pooled
