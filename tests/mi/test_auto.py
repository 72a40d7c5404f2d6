"""The default: chooses what fits, says why, and is near the truth."""

import numpy as np
import pytest

import flatclr
from flatclr.mi import FAST, FitSettings, estimate, tasks

KINDS = {
    "normal": (tasks.gaussian_pairs(1, pairs=1, correlation=0.75), "gaussian"),
    "additive": (tasks.additive_uniform(0.1), "ksg"),
    "swiss_roll": (tasks.swiss_roll(), "spiral"),  # a roll is a spiral of its radius
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


def test_the_default_learns_a_residual_where_no_family_fits():
    x, noise = np.random.default_rng(0).normal(size=(2, 3000, 6))
    y = np.abs(x) + 0.3 * noise

    result = estimate(x, y, settings=FitSettings(steps=300, hidden=64, check_every=50, patience=3))

    assert result.method.startswith("infonce, anchored on")
    assert result.kind == "lower"
    assert max(value for _, value in result.curve) > result.curve[0][1] + 0.3
