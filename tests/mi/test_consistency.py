"""The laws of information on the user's own rows."""

import json

import numpy as np
import pytest

from flatclr.mi import Consistency, MIEstimate, SelfTest, check, estimate, tasks
from flatclr.mi.consistency import _part, _with_function


def test_a_good_estimator_keeps_every_law_and_is_trusted_to_its_interval():
    found = check(*tasks.gaussian_pairs(2).sample(1000, seed=0), "gaussian")

    assert all(test.kept for test in found.tests)
    assert found.trusted_to_nats == pytest.approx(1.96 * found.estimate.standard_error)
    assert "4 of 4 laws hold" in found.sentence()
    json.dumps(found.to_dict(), allow_nan=False)


def test_an_estimator_that_breaks_a_law_is_trusted_no_further_than_that():
    """A Gaussian copula sees little of a sine, and most of it once the sine is a column."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=(2000, 6))
    x = np.sin(y.sum(1)) + 0.2 * rng.normal(size=2000)

    found = check(x, y, "gaussian")
    broken = [test for test in found.tests if not test.kept]

    assert broken
    assert found.trusted_to_nats >= max(test.deviation_nats for test in broken)


def test_less_than_the_limit_breaks_no_law_of_processing():
    lower = SelfTest("data processing", "part", 1.0, 0.2, 0.1, at_most=True)

    assert lower.kept
    assert lower.deviation_nats == 0
    assert not SelfTest("additivity", "halves", 1.0, 0.2, 0.1).kept


def test_parts_and_functions_of_y_are_functions_of_y():
    y = np.random.default_rng(0).normal(size=(64, 3))

    assert _part(y).shape == (64, 2)
    assert set(_part(y[:, :1])[:, 0]) == set(range(8))
    np.testing.assert_array_equal(_with_function(y)[:, :3], y)


def test_no_finite_error_is_said():
    x = np.random.default_rng(0).normal(size=(200, 1))
    found: MIEstimate = estimate(x, np.exp(x), "gaussian")

    assert "no finite error" in Consistency(found, ()).sentence()
