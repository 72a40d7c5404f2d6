"""`flatclr.mi.estimate` as a user meets it: near the truth, held out, reproducible, ready for JSON."""

import json
import math

import numpy as np
import pytest
import torch

import flatclr
from flatclr.mi import FAST, METHODS, MIEstimate, estimate, tasks
from flatclr.mi.density import Conditional
from flatclr.mi.splits import splits
from tests.support.mi import ANCHOR_ONLY, FIXED, LEARNED, PAIR


def test_the_methods_are_those_promised():
    promised = "infonce flatnce dv mine nwj tuba flo js smile interpolated ba club l1out ksg mixed_ksg gaussian auto"

    assert set(promised.split()) <= set(METHODS)
    assert set(METHODS) == {"auto", *FIXED, *LEARNED}
    assert flatclr.mi.METHODS is METHODS


@pytest.mark.parametrize("method", [*FIXED, *LEARNED])
def test_every_method_is_near_the_truth_on_its_side(method: str):
    x, y = PAIR.sample(1500, seed=0)
    result = estimate(x, y, method, settings=FAST)
    near = 4 * result.standard_error + 0.06

    assert result.kind in ("lower", "upper", "neither")
    assert (result.method, result.reason) == (method, "asked for.")
    if method == "club":  # its optimum is chi^2-like, far above
        assert result.nats == pytest.approx(0.8**2 / (1 - 0.8**2), abs=near)
    else:
        assert result.nats == pytest.approx(PAIR.mi_nats, abs=near)
    assert 0 < result.standard_error < 0.2


@pytest.mark.parametrize("method", LEARNED)
def test_what_is_called_a_lower_bound_is_read_from_rows_that_neither_trained_nor_stopped(method: str):
    split = next(splits(1000, seed=0))
    parts = [set(part.tolist()) for part in vars(split).values()]

    assert sum(map(len, parts)) == 1000
    assert set.union(*parts) == set(range(1000))
    result = estimate(*PAIR.sample(300, seed=0), method, settings=ANCHOR_ONLY)
    assert result.limits.rows == 60
    assert result.limits.negative_pairs == 60 * 59


def test_cross_fitting_reads_every_row_once():
    evaluated = np.concatenate([split.evaluation for split in splits(103, seed=1, folds=4)])
    x, y = PAIR.sample(500, seed=0)
    once, crossed = (estimate(x, y, "infonce", folds=folds, settings=ANCHOR_ONLY) for folds in (1, 5))

    np.testing.assert_array_equal(np.sort(evaluated), np.arange(103))
    assert crossed.limits.rows == 500
    assert crossed.standard_error == pytest.approx(once.standard_error / math.sqrt(5), rel=0.3)


@pytest.mark.parametrize("method", ["infonce", "flo", "ba", "auto"])
def test_the_same_seed_gives_the_same_number_and_leaves_the_generator_alone(method: str):
    x, y = tasks.gaussian_pairs(3).sample(400, seed=0)
    state = torch.random.get_rng_state()
    first, second = (estimate(x, y, method, seed=3, settings=FAST) for _ in range(2))

    assert first == second
    assert torch.equal(state, torch.random.get_rng_state())


def test_independent_variables_give_zero():
    x, y = np.random.default_rng(0).normal(size=(2, 2000, 4))

    for method in ("auto", "infonce", "dv"):
        result = estimate(x, y, method, settings=FAST)
        assert abs(result.nats) < 4 * result.standard_error + 0.02


def test_processing_y_adds_nothing():
    x, y = tasks.gaussian_pairs(1, pairs=1, correlation=0.8).sample(4000, seed=0)
    plain = estimate(x, y).nats

    assert estimate(x, np.hstack([y, y**2]), "ksg").nats / plain == pytest.approx(1, abs=0.12)
    assert estimate(x, np.exp(y)).nats == pytest.approx(plain, abs=1e-9)


def test_independent_copies_add_up():
    task = tasks.gaussian_pairs(2, pairs=1, correlation=0.8)
    (x, y), (u, v) = task.sample(3000, seed=0), task.sample(3000, seed=1)

    both = estimate(np.hstack([x, u]), np.hstack([y, v]), settings=FAST)

    assert both.nats / estimate(x, y, settings=FAST).nats == pytest.approx(2, abs=0.15)


def test_the_conditional_density_of_all_pairs_agrees_with_that_of_single_pairs():
    x, y = (torch.from_numpy(v).float() for v in tasks.gaussian_dense(3, 2).sample(30, seed=0))
    learner = Conditional(x, y, hidden=8)
    with torch.no_grad():
        for parameter in learner.net.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
        matrix = learner.log_density_matrix(x, y)
        for shift in (0, 1, 7):
            expected = learner.log_density(x, y.roll(-shift, 0)).double()
            actual = matrix[torch.arange(30), (torch.arange(30) + shift) % 30]
            torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_more_rows_than_useful_are_drawn_from(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("flatclr.mi.estimator.LARGEST_ROWS", 600)
    x, y = PAIR.sample(900, seed=0)
    drawn, all_rows = estimate(x, y, "ksg"), estimate(x, y, "gaussian")

    assert drawn.limits.rows == 600
    assert drawn.warnings == ("600 of 900 rows were drawn: more cost much and tell little.",)
    assert all_rows.limits.rows == 900


def test_a_result_turns_into_json_without_infinities():
    result = estimate(*PAIR.sample(200, seed=0), "gaussian")
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))

    assert isinstance(result, MIEstimate)
    assert plain["ceiling_nats"] is None
    assert plain["limits"]["distribution_free_nats"] == pytest.approx(math.log(200))
