"""Fewer than 50 rows: a lower bound that holds whatever the law, and no upper limit."""

import math

import numpy as np
import pytest

from flatclr.mi import check, estimate, tasks

LAWS = [
    tasks.gaussian_pairs(1, pairs=1, correlation=0.6),
    tasks.student(1, 1, 1),
    tasks.circular(1),
    tasks.sign_mixture(1),
    tasks.additive_uniform(0.1),
    tasks.sheared(tasks.gaussian_pairs(2)),
]


@pytest.mark.parametrize("task", LAWS, ids=lambda task: task.name)
@pytest.mark.parametrize("rows", [15, 40])
def test_what_few_rows_certify_is_there(task: tasks.Task, rows: int):
    draws = 50
    found = [estimate(*task.sample(rows, seed), seed=seed) for seed in range(draws)]

    too_high = sum(result.lower_nats > task.mi_nats for result in found)
    assert too_high <= 0.05 * draws + 2 * math.sqrt(0.05 * 0.95 * draws)
    assert all(result.standard_error == math.inf for result in found)


@pytest.mark.parametrize("task", [task for task in LAWS if task.dim_x == 1], ids=lambda task: task.name)
def test_correlations_of_normal_scores_never_say_more_than_there_is(task: tasks.Task):
    many = estimate(*task.sample(20_000, seed=0), "gaussian")

    assert many.nats < task.mi_nats + 3 * many.standard_error


def test_a_strong_correlation_is_certified_by_twenty_rows():
    task = tasks.gaussian_pairs(1, pairs=1, correlation=0.95)
    found = [estimate(*task.sample(20, seed)) for seed in range(20)]

    assert 0.4 < np.median([result.lower_nats for result in found]) < task.mi_nats
    result = found[0]
    assert result.sentence().startswith(f"I(x; y) >= {result.lower_nats:.3f} nats (95 %), without an upper limit")
    assert "20 rows show correlations at most; there may be any further information." in result.warnings


def test_below_five_hundred_rows_a_finite_error_says_what_it_is_for():
    told = "of fewer than 500 rows the error is that of named families: other dependence may read lower than it says."
    x, y = tasks.gaussian_pairs(1, pairs=1).sample(500, seed=0)

    assert told in estimate(x[:499], y[:499]).warnings
    assert told not in estimate(x, y).warnings
    wide = np.random.default_rng(0).normal(size=(2, 61, 32))
    assert told not in estimate(*wide).warnings, "it has no error"


def test_no_law_is_said_to_hold_that_cannot_be_broken():
    x, y = np.random.default_rng(0).normal(size=(2, 30, 2))

    assert check(x, y).sentence().startswith("no law can be tried on so few rows")


def test_as_many_columns_as_rows_certify_nothing():
    x, y = np.random.default_rng(0).normal(size=(2, 20, 8))

    assert estimate(x, y).lower_nats == 0
    assert estimate(x, y).standard_error == math.inf


def test_codes_and_conditions_are_taken_too():
    rng = np.random.default_rng(0)
    certified = []
    for _ in range(40):
        x = rng.integers(0, 3, size=40)
        y = np.where(rng.uniform(size=40) < 0.7, x, rng.integers(0, 3, size=40))
        certified.append(estimate(x, y).lower_nats)
    same, other = 0.7 + 0.1, 0.1
    true_nats = math.log(3) + same * math.log(same) + 2 * other * math.log(other)
    assert sum(lower > true_nats for lower in certified) <= 0.05 * 40 + 2 * math.sqrt(0.05 * 0.95 * 40)
    assert max(certified) > 0.1
    x, y, z = rng.normal(size=(3, 30))
    assert estimate(x, y + x, given=z).standard_error == math.inf
