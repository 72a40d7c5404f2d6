"""The default: chooses what fits, says why, and is near the truth."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import flatclr
from flatclr.mi import FAST, FitSettings, estimate, tasks


def _folded_normal_nats(noise: float) -> float:
    """I(x; |x| + noise), both normal: H(y) less the entropy of the noise, on a grid."""
    y = np.linspace(-4, 9, 20001)
    density = 2 * stats.norm.pdf(y, 0, np.hypot(1, noise)) * stats.norm.cdf(y / noise / np.hypot(1, noise))
    entropy = -np.sum(density * np.log(np.maximum(density, 1e-300))) * (y[1] - y[0])
    return float(entropy - stats.norm(0, noise).entropy())


FOLDED_NORMAL_NATS = _folded_normal_nats(0.3)
KINDS = {
    "normal": (tasks.gaussian_pairs(1, pairs=1, correlation=0.75), "gaussian"),
    "additive": (tasks.additive_uniform(0.1), "ksg"),
    "swiss_roll": (tasks.swiss_roll(), "ksg"),  # a roll is a spiral of its radius
    "student": (tasks.student(2, 2, 1), "student"),
    "sparse": (tasks.normal_cdf(tasks.gaussian_pairs(6)), "gaussian"),
    "spiral": (tasks.spiral(tasks.gaussian_pairs(3)), "spiral"),
    "discrete": (tasks.discrete_uniform(5), "mixed_ksg"),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_default_chooses_what_fits_says_why_and_is_near_the_truth(name: str):
    task, expected = KINDS[name]
    result = estimate(*task.sample(2500, seed=0), settings=FAST)

    assert result.method == expected
    assert len(result.reason) > 20
    assert abs(result.nats - task.mi_nats) < 4 * result.standard_error + 0.03


def test_the_default_keeps_the_turns_that_validation_confirmed(monkeypatch: pytest.MonkeyPatch):
    searched = []
    find = flatclr.mi.copula.find_spirals
    monkeypatch.setattr(flatclr.mi.copula, "find_spirals", lambda x, y: searched.append(len(x)) or find(x, y))
    x, y = tasks.spiral(tasks.gaussian_pairs(3)).sample(1500, seed=0)

    result = estimate(x, y, settings=FAST)

    assert result.method == "spiral"
    assert searched == [900]  # the training rows, once; margins and correlations are then those of all rows
    assert result.limits.rows == 1500


def test_the_default_learns_densities_where_no_family_fits():
    x, noise = np.random.default_rng(0).normal(size=(2, 2000, 3))
    y = np.abs(x) + 0.3 * noise

    result = estimate(x, y, settings=FitSettings(steps=200, hidden=48, check_every=50, patience=3))

    assert (result.method, result.kind) == ("doe", "neither")
    assert abs(result.nats - 3 * FOLDED_NORMAL_NATS) < 3 * result.standard_error
    assert 0 < result.lower_nats < 3 * FOLDED_NORMAL_NATS
    assert result.runner_up.split()[0] in ("a", "neighbours")
    assert any("2000 rows are few to learn what 6 columns share" in warning for warning in result.warnings)


def _uniform_noise(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    x = rng.random((2000, 10))
    return x, x + 0.75 * (2 * rng.random((2000, 10)) - 1), 10 / 3


def _sign_of_a_product(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    x = rng.normal(size=(2000, 3))
    return x, np.sign(x.prod(1)) * np.abs(rng.normal(size=2000)), np.log(2)


@pytest.mark.slow
@pytest.mark.parametrize("made", [_uniform_noise, _sign_of_a_product])
def test_what_few_rows_do_not_teach_reads_a_third_low_and_says_that_it_may(made: Callable[..., Any]):
    x, y, truth = made(np.random.default_rng(200))

    result = estimate(x, y)

    assert 0.5 * truth < result.nats < 0.85 * truth
    assert result.standard_error < 0.15 * truth
    assert result.lower_nats < truth
    assert any("may be low by more than its error" in warning for warning in result.warnings)


def test_the_default_cross_fits_what_it_learned():
    x, noise = np.random.default_rng(0).normal(size=(2, 600, 3))
    y, settings = np.abs(x) + 0.3 * noise, FitSettings(steps=100, hidden=32, check_every=25, patience=3)

    whole, fold = (estimate(x, y, settings=settings, folds=folds) for folds in (2, 1))

    assert whole.method == fold.method == "doe"
    assert (whole.limits.rows, fold.limits.rows) == (600, 120)
    assert abs(whole.nats - fold.nats) < 0.3
    assert whole.lower_nats == fold.lower_nats
    assert (whole.more_time, fold.more_time) == ("", "")

    cut = estimate(x, y, settings=settings, folds=2, steps=whole.steps - 60)

    assert (cut.nats, cut.standard_error, cut.limits.rows) == (fold.nats, fold.standard_error, 120)
    assert "cross-fit" in cut.more_time


def test_one_thread_estimates_and_the_callers_threads_come_back():
    seen, before = [], torch.get_num_threads()
    x, y = tasks.gaussian_pairs(3).sample(200, seed=0)
    torch.set_num_threads(2)
    try:
        estimate(x, y, settings=FAST, progress=lambda _: seen.append(torch.get_num_threads()))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


GAUSSIANS = {  # dimensions, correlation, rows; of each, what the default once read
    "few rows for strong dependence": (5, 0.9, 200),  # 1.28 low
    "above the logarithm of the rows": (20, 0.777, 600),  # capped by its own validation rows
    "twice as many rows as columns": (50, 0.6, 200),  # 2.24 of 11.16
}


@pytest.mark.parametrize("name", GAUSSIANS)
def test_a_gaussian_is_read_by_its_plug_in_value_whatever_a_bound_could_confirm(name: str):
    dim, correlation, rows = GAUSSIANS[name]
    task = tasks.gaussian_pairs(dim, pairs=dim, correlation=correlation)
    result = estimate(*task.sample(rows, seed=1), settings=FAST)

    assert result.method in ("gaussian", "student")  # whose tails may look a little heavy in few rows
    assert abs(result.nats - task.mi_nats) < 3 * result.standard_error
    assert result.standard_error < 0.1 * task.mi_nats
    assert result.lower_nats < np.log(rows) < task.mi_nats + 1.2


@pytest.mark.parametrize(("rows", "seed"), [(100, 0), (80, 5), (95, 0)])
def test_fewer_rows_than_columns_give_no_finite_error(rows: int, seed: int):
    """Densities once answered with 6e19 nats, and a bound was certified above the value."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 50))

    result = estimate(x, 0.6 * x + 0.8 * rng.normal(size=(rows, 50)), settings=FAST)

    assert np.isinf(result.standard_error)
    assert any("do not determine" in warning for warning in result.warnings)
    assert 0 < result.lower_nats <= result.nats < 20


def test_a_common_scale_is_seen_in_few_rows():
    """Judged on 40 validation rows alone, no scale was found: 0.06 +- 0.05 of 0.30 nats."""
    task = tasks.student(5, 5, 3)
    result = estimate(*task.sample(200, seed=2), seed=2, settings=FAST)

    assert result.method == "student"
    assert abs(result.nats - task.mi_nats) < 3 * result.standard_error


@pytest.mark.slow
def test_an_answer_that_was_carried_on_claims_no_bound_and_certifies_no_more_than_it_read():
    task = tasks.sign_mixture(1)

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        x, y = task.draw(2000, rng)
        noise_x, noise_y = rng.standard_normal((2, 2000, 4))
        return np.hstack([x, noise_x]), np.hstack([y, noise_y])

    settings = FitSettings(steps=400, hidden=64, check_every=50, patience=4)
    result = estimate(*draw(np.random.default_rng(1)), seed=1, settings=settings)

    assert result.kind == "neither"
    assert abs(result.nats - task.mi_nats) < 3 * result.standard_error
    assert result.lower_nats < task.mi_nats
