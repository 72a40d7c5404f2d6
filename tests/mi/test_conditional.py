"""Information given a third variable, and its standard error."""

import math

import numpy as np
import pytest

from flatclr.mi import FitSettings, estimate, held_out
from tests.support.mi import ANCHOR_ONLY, PAIR


def conditional_rows(rows: int, seed: int) -> list[np.ndarray]:
    """x, y, z with z behind both; I(x; y | z) is that of the noises' correlation 0.6."""
    rng = np.random.default_rng(seed)
    z, x, y = rng.normal(size=(3, rows, 1))
    y = 0.6 * x + 0.8 * y
    return [2 * z + x, 2 * z + y, z]


@pytest.mark.parametrize(("method", "rows"), [("gaussian", 400), ("infonce", 600), ("ba", 600)])
def test_the_conditional_standard_error_is_the_spread_of_a_difference_over_shared_rows(method: str, rows: int):
    results = []
    for seed in range(120):
        x, y, z = conditional_rows(rows, seed)
        results.append(estimate(x, y, method, given=z, seed=seed, settings=ANCHOR_ONLY))

    spread = np.std([result.nats for result in results], ddof=1)
    error = np.median([result.standard_error for result in results])
    assert 0.8 < spread / error < 1.25  # the spread of 120 draws is known to 6.5 %
    if method == "gaussian":
        off = (np.array([result.nats for result in results]) + 0.5 * math.log(1 - 0.36)) / error
        assert np.mean(np.abs(off) < 2) > 0.95 - 3 * math.sqrt(0.05 * 0.95 / 120)


@pytest.mark.slow
def test_the_conditional_standard_error_of_neighbours_is_the_spread_too():
    results = []
    for seed in range(120):
        x, y, z = conditional_rows(400, seed)
        results.append(estimate(x, y, "ksg", given=z))

    spread = np.std([result.nats for result in results], ddof=1)
    assert 0.8 < spread / np.median([result.standard_error for result in results]) < 1.25


@pytest.mark.slow
def test_the_default_conditions_also_where_it_learns():
    x, noise = np.random.default_rng(0).normal(size=(2, 600, 6))
    y = np.abs(x) + 0.3 * noise

    result = estimate(x, y[:, :3], given=y[:, 3:], settings=FitSettings(steps=60, hidden=32, check_every=30))

    assert result.method == "doe"
    assert result.kind == "neither"
    assert 0 < result.standard_error < 1


def test_a_constant_condition_changes_nothing():
    x, y = PAIR.sample(300, seed=0)
    plain, conditioned = estimate(x, y, "gaussian"), estimate(x, y, "gaussian", given=np.ones(300))

    assert (conditioned.nats, conditioned.standard_error) == (plain.nats, plain.standard_error)


def test_information_given_the_common_cause_is_zero_and_given_noise_is_all_of_it():
    rng = np.random.default_rng(0)
    cause, noise = rng.normal(size=(2, 3000, 1))
    x, y = cause + 0.5 * rng.normal(size=(2, 3000, 1))

    explained = estimate(x, y, "gaussian", given=cause)
    unexplained = estimate(x, y, "gaussian", given=noise)

    assert explained.kind == unexplained.kind == "neither"
    assert abs(explained.nats) < 4 * explained.standard_error
    assert unexplained.nats == pytest.approx(estimate(x, y, "gaussian").nats, abs=0.01)
    assert "I(x; [y, z])" in explained.reason


def test_a_budget_that_ends_lets_both_terms_learn_as_long(monkeypatch: pytest.MonkeyPatch):
    """The second was once not trained at all."""
    steps, fit = [], held_out.fit

    def counted(*arguments: object) -> object:
        curve = fit(*arguments)  # type: ignore[arg-type]
        steps.append(curve[-1][0])
        return curve

    monkeypatch.setattr(held_out, "fit", counted)
    x, y, z = conditional_rows(400, seed=0)
    settings = FitSettings(steps=400, hidden=8, check_every=50, patience=100)

    result = estimate(x, y, "infonce", given=z, settings=settings, steps=120)

    assert steps == [150, 150]
    assert "train longer" in result.more_time
