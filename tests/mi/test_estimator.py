"""`flatclr.mi.estimate` as a user meets it: numbers, kinds, limits, warnings, inputs."""

import itertools
import json
import math
import re
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

import flatclr
from flatclr.mi import FAST, METHODS, FitSettings, MIEstimate, estimate, tasks
from flatclr.mi.arrays import as_tensor
from flatclr.mi.columns import dithered, inspect
from flatclr.mi.critics import make_critic
from flatclr.mi.density import Conditional
from flatclr.mi.fit import fit
from flatclr.mi.methods import VARIATIONAL
from flatclr.mi.splits import splits
from flatclr.mi.variational import InfoNCE
from flatclr.objectives.nce import flat_nce

PAIR = tasks.gaussian_pairs(2, pairs=1, correlation=0.8)
ANCHOR_ONLY = FitSettings(steps=0, hidden=4)
FIXED = ["gaussian", "student", "spiral", "ksg", "ksg2", "mixed_ksg"]
LEARNED = [*VARIATIONAL, "ba", "club", "l1out"]


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


def binary_nats(distance: float) -> float:
    """Information of a fair sign about N(sign * distance, 1), by quadrature."""
    t = np.linspace(-10, 10 + distance, 20_001)
    density = np.exp(-((t - distance) ** 2) / 2) / math.sqrt(2 * math.pi)
    return float(np.sum(density * -np.log(0.5 + 0.5 * np.exp(-2 * distance * t))) * (t[1] - t[0]))


@pytest.mark.parametrize("swap", [False, True], ids=["y", "x"])
def test_the_default_classifies_a_discrete_variable_beside_many_columns(swap: bool):
    rng = np.random.default_rng(0)
    signs = rng.integers(2, size=(4000, 2))
    rows = rng.normal(size=(4000, 14))
    rows[:, [0, 5]] += 1.5 * (2 * signs - 1)
    truth = 2 * binary_nats(1.5)
    settings = FitSettings(steps=400, hidden=64)

    result = estimate(signs, rows, settings=settings) if swap else estimate(rows, signs, settings=settings)

    assert (result.method, result.kind) == ("classifier", "lower")
    assert "4 classes" in result.reason
    assert truth - 0.05 - 3 * result.standard_error < result.nats < truth + 3 * result.standard_error
    assert result.ceiling_nats == pytest.approx(2 * math.log(2), abs=0.01)
    assert math.log(800) == pytest.approx(result.limits.distribution_free_nats)


def test_a_parity_of_bits_is_seen_whole_and_never_above_the_entropy():
    bits = np.random.default_rng(1).integers(2, size=(3000, 12))
    parity = bits[:, 0] ^ bits[:, 1]

    result = estimate(bits, parity, settings=FitSettings(steps=600, hidden=64))

    entropy = -sum(p * math.log(p) for p in (parity.mean(), 1 - parity.mean()))
    assert entropy - 0.01 < result.nats <= entropy
    assert not any("ceiling" in warning for warning in result.warnings)


@pytest.mark.parametrize(("dim", "expected"), [(1, "gaussian"), (8, "gaussian")])
def test_rounded_columns_are_taken_for_continuous_ones(dim: int, expected: str):
    task = tasks.gaussian_dense(dim)
    x, y = (np.round(v, 2) for v in task.sample(3000, seed=0))

    result = estimate(x, y, settings=FAST)

    assert result.method == expected
    assert "discrete or tied" in result.warnings[0]
    assert abs(result.nats - task.mi_nats) < 4 * result.standard_error


def test_rounded_columns_that_no_family_fits_get_neighbours():
    x, y = (np.round(v, 2) for v in tasks.additive_uniform(0.3).sample(3000, seed=0))

    result = estimate(x, y, settings=FAST)

    assert result.method == "ksg"
    assert "digits at random" in result.reason
    assert result.nats == pytest.approx(tasks.additive_uniform(0.3).mi_nats, abs=0.06)
    assert estimate(x, y, "mixed_ksg").nats > result.nats + 0.06  # of lattice points with few rows each


def test_dithering_keeps_the_order_of_levels_and_leaves_continuous_columns_alone():
    rows = np.random.default_rng(0).normal(size=(500, 2))
    rows[:, 0] = np.round(rows[:, 0], 1)
    moved = dithered(rows, np.random.default_rng(1))

    levels = np.unique(rows[:, 0])
    np.testing.assert_array_equal(levels[np.searchsorted(levels, moved[:, 0], "right") - 1], rows[:, 0])
    assert len(np.unique(moved[:, 0])) == 500
    np.testing.assert_array_equal(moved[:, 1], rows[:, 1])


def test_wide_tables_of_few_places_are_counted():
    rng = np.random.default_rng(0)
    bits = rng.integers(2, size=(3000, 3))
    wide = np.stack([bits @ weights for weights in itertools.product((0, 1, 3), repeat=3) if any(weights)], 1)
    y = bits[:, 0] ^ (rng.uniform(size=3000) < 0.1)
    truth = math.log(2) + 0.1 * math.log(0.1) + 0.9 * math.log(0.9)

    result = estimate(wide, y)

    assert result.method == "mixed_ksg"
    assert "16 places" in result.reason
    assert abs(result.nats - truth) < 4 * result.standard_error


@pytest.mark.parametrize("width", [4, 8])
def test_mixed_columns_on_both_sides_get_a_lower_bound_near_the_truth(width: int):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 4000, width))
    y[:, 1] = 0.8 * x[:, 1] + 0.6 * y[:, 1]
    bit, flipped = rng.integers(2, size=4000), rng.uniform(size=4000) < 0.1
    x[:, 0], y[:, 0] = bit, bit ^ flipped
    truth = -0.5 * math.log(1 - 0.64) + math.log(2) + 0.1 * math.log(0.1) + 0.9 * math.log(0.9)

    result = estimate(x, y, settings=FAST)

    assert (result.method, result.kind) == ("infonce, anchored on gaussian", "lower")
    assert "tied values" in result.reason
    assert truth - 0.1 - 3 * result.standard_error < result.nats < truth + 3 * result.standard_error


def test_the_default_learns_a_residual_where_no_family_fits():
    x, noise = np.random.default_rng(0).normal(size=(2, 3000, 6))
    y = np.abs(x) + 0.3 * noise

    result = estimate(x, y, settings=FitSettings(steps=300, hidden=64, check_every=50, patience=3))

    assert result.method.startswith("infonce, anchored on")
    assert result.kind == "lower"
    assert max(value for _, value in result.curve) > result.curve[0][1] + 0.3


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


def test_the_conditional_standard_error_of_neighbours_is_on_the_safe_side():
    results = []
    for seed in range(120):
        x, y, z = conditional_rows(400, seed)
        results.append(estimate(x, y, "ksg", given=z))

    assert np.std([r.nats for r in results]) < np.median([r.standard_error for r in results])


def test_the_default_conditions_also_where_it_learns_a_residual():
    x, noise = np.random.default_rng(0).normal(size=(2, 600, 6))
    y = np.abs(x) + 0.3 * noise

    result = estimate(x, y[:, :3], given=y[:, 3:], settings=FitSettings(steps=60, hidden=32, check_every=30))

    assert result.method.startswith("infonce, anchored on")
    assert result.kind == "neither"
    assert 0 < result.standard_error < 0.2


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


@pytest.mark.parametrize("method", ["infonce", "dv", "js"])
def test_the_standard_error_covers_as_promised(method: str):
    """The reading of a fixed critic is off by more than two standard errors in about 5 % of samples."""
    critic = make_critic("anchored", 1, 1, hidden=4, copula=_population_copula())
    reader = VARIATIONAL[method](critic, 1, 1, 4)
    task = tasks.gaussian_pairs(1, pairs=1, correlation=0.7)
    off = []
    for seed in range(300):
        x, y = (torch.from_numpy(v).float() for v in task.sample(200, seed))
        reading = reader.read(x, y)
        off.append((reading.nats - task.mi_nats) / reading.standard_error)

    spread = np.std(off)
    assert spread == pytest.approx(1, abs=0.2)
    assert np.mean(np.abs(off) < 2) > 0.95 - 4 * math.sqrt(0.05 * 0.95 / 300)


def _population_copula() -> flatclr.mi.copula.Copula:
    fitted = flatclr.mi.copula.fit_gaussian(*tasks.gaussian_pairs(1, pairs=1, correlation=0.7).sample(100, seed=0))
    return flatclr.mi.copula.Copula(**{**vars(fitted), "correlation": np.array([[1, 0.7], [0.7, 1]])})


@pytest.mark.parametrize("method", FIXED)
def test_plug_in_and_neighbour_errors_cover_too(method: str):
    task = tasks.gaussian_pairs(1, pairs=1, correlation=0.6)
    results = [estimate(*task.sample(400, seed), method) for seed in range(40)]
    off = [(result.nats - task.mi_nats) / result.standard_error for result in results]

    assert np.mean(np.abs(off) < 2) > 0.95 - 4 * math.sqrt(0.05 * 0.95 / 40)


def test_flatnce_reads_beyond_its_batch_where_naive_training_diverges():
    x, y = tasks.gaussian_with_mi(6.0).sample(6000, seed=0)
    settings = FitSettings(steps=200, batch_size=64, check_every=100)
    flat = estimate(x, y, "flatnce", settings=settings)

    assert math.log(64) + 0.4 < flat.nats < 6 + 3 * flat.standard_error

    x, y = (torch.from_numpy(v).float() for v in (x, y))
    torch.manual_seed(0)
    critic = make_critic("separable", 20, 20, hidden=128)
    optimizer = torch.optim.Adam(critic.parameters(), 1e-3)
    for step in range(200):
        rows = slice(64 * (step % 60), 64 * (step % 60) + 64)
        loss = flat_nce(flatclr.stats_from_scores(critic(x[rows], y[rows]))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert InfoNCE(critic, 20, 20, 1).validate(x[4000:], y[4000:]) < 0


def test_flatnce_refuses_an_unbounded_critic():
    with pytest.raises(
        ValueError, match="flatnce must have the cosine critic, got Separable; an unbounded one diverges"
    ):
        estimate(*PAIR.sample(100, seed=0), "flatnce", critic="separable")


@pytest.mark.parametrize("critic", ["inner", "bilinear", "separable", "joint", "anchored", "cosine"])
def test_every_critic_can_be_asked_for(critic: str):
    result = estimate(*PAIR.sample(600, seed=0), "infonce", critic=critic, settings=FAST)

    assert result.nats < PAIR.mi_nats + 3 * result.standard_error
    assert result.ceiling_nats == pytest.approx(math.log(120))


def test_training_ends_where_validation_was_best():
    class Scripted(torch.nn.Module):
        batch_size = 4
        values = iter([1.0, 3.0, 2.0, 0.0, 0.0, 0.0])

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.weight.sum()

        def validate(self, x: torch.Tensor, y: torch.Tensor) -> float:
            self.seen = [*getattr(self, "seen", []), self.weight.item()]
            return next(self.values)

    learner, rows = Scripted(), torch.zeros(8, 1)
    curve = fit(
        learner, (rows, rows), (rows, rows), FitSettings(steps=50, check_every=1, patience=2), torch.Generator()
    )

    assert [value for _, value in curve] == [1.0, 3.0, 2.0, 0.0, 0.0]
    assert learner.weight.item() == learner.seen[1] != 0


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


@pytest.mark.parametrize(
    ("as_given", "y_as_given"),
    [
        (lambda v: v, lambda v: v[:, 0]),
        (torch.from_numpy, torch.from_numpy),
        (lambda v: pd.DataFrame(v, columns=["a", "b"]), lambda v: pd.Series(v[:, 0], name="c")),
        (lambda v: v.tolist(), lambda v: v.tolist()),
        (lambda v: torch.from_numpy(v).requires_grad_(), lambda v: v),
        (lambda v: pd.DataFrame(v).astype("Float64"), lambda v: pd.Series(v[:, 0])),
    ],
    ids=["vector", "torch", "pandas", "lists", "gradient", "nullable"],
)
def test_arrays_tensors_and_frames_give_the_same_number(as_given: object, y_as_given: object):
    x, y = tasks.gaussian_dense(2, 1).sample(200, seed=0)

    assert estimate(as_given(x), y_as_given(y), "gaussian") == estimate(x, y, "gaussian")


def test_bfloat16_tensors_are_read_as_the_numbers_they_hold():
    x, y = (torch.from_numpy(v).bfloat16() for v in PAIR.sample(200, seed=0))

    assert estimate(x, y, "gaussian") == estimate(x.double().numpy(), y.double().numpy(), "gaussian")


GOOD = np.random.default_rng(0).normal(size=(60, 2))
BAD = {
    "lengths": ((GOOD, GOOD[:55]), ValueError, "equally many rows, got x with 60 and y with 55; row i of both"),
    "nan": ((np.where(GOOD > 2, np.nan, GOOD), GOOD), ValueError, r"x must be finite, got NaN or Inf in \d+ of 60 rows, first in row \d+; drop or fill"),
    "few": ((GOOD[:49], GOOD[:49]), ValueError, "at least 50 rows must be given, got 49"),
    "text": ((np.array([["a", "b"]] * 60), GOOD), TypeError, "x must be numeric, got <U1; encode text"),
    "text_column": ((pd.DataFrame({"a": range(60), "name": ["q"] * 60}), GOOD), TypeError, "x must have numeric columns, got text in 'name'; encode"),
    "rank": ((GOOD[:, :, None], GOOD), ValueError, r"x must have shape \[N\] or \[N, d\], got \[60, 2, 1\]; flatten"),
    "empty": ((GOOD[:, :0], GOOD), ValueError, r"x must have shape \[N\] or \[N, d\], got \[60, 0\]"),
    "dates": ((pd.DataFrame({"a": range(60), "day": pd.date_range("2024-01-01", periods=60)}), GOOD), TypeError, "x must have numeric columns, got dates in 'day'; turn dates into numbers first, e.g. days since"),
    "date_series": ((GOOD, pd.Series(pd.date_range("2024-01-01", periods=60, tz="UTC"), name="day")), TypeError, "y must have numeric columns, got dates in 'day'; turn dates"),
    "date_array": ((np.arange(60).astype("M8[D]"), GOOD), TypeError, r"x must be numeric, got datetime64\[D\]; turn dates"),
    "durations": ((pd.Series(pd.to_timedelta(range(60))), GOOD), TypeError, "x must have numeric columns, got durations in 'x'; turn durations"),
    "complex": ((GOOD + 1j, GOOD), TypeError, "x must be numeric, got complex128; pass real and imaginary parts"),
    "missing": ((pd.Series([None, *range(59)], dtype="Int64"), GOOD), ValueError, "x must be finite, got NaN or Inf in 1 of 60 rows, first in row 0"),
    "method": ((GOOD, GOOD, "ksgg"), ValueError, "method must be one of .* got 'ksgg'; did you mean 'ksg'"),
    "given": ((GOOD, GOOD, "gaussian", GOOD[:50]), ValueError, "equally many rows, got x with 60 and y with 60 and given with 50"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_line(name: str):
    arguments, error, message = BAD[name]
    with pytest.raises(error, match=message) as caught:
        estimate(*arguments)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critic": "deep"}, "critic must be one of"),
        ({"folds": 0}, "folds must be a whole number >= 1 and <= 20, got 0"),
        ({"method": "ksg", "k": 60}, "k must be a whole number >= 1 and <= 59, got 60"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        estimate(GOOD, GOOD + 1, **options)


def test_odd_columns_are_named_and_do_no_harm():
    x, y = PAIR.sample(600, seed=0)
    plain = estimate(x, y, "gaussian")
    odd = estimate(np.hstack([x, np.ones((600, 1)), x[:, :1]]), y, "gaussian")

    assert odd.nats == pytest.approx(plain.nats)
    assert "x has 1 constant column(s)" in odd.warnings[0]
    assert "x has 1 duplicated column(s)" in odd.warnings[1]
    assert inspect("y", np.round(y)).discrete
    assert not inspect("y", y).discrete


RNG = np.random.default_rng(5)
NORMAL = RNG.normal(size=(120, 3))
AWKWARD = {
    "equal": (NORMAL, NORMAL),
    "monotone_copies": (np.hstack([NORMAL, 2 * NORMAL[:, :1], -(NORMAL[:, 1:2] ** 3)]), NORMAL + RNG.normal(size=(120, 3))),
    "linear_combinations": (np.hstack([NORMAL, NORMAL.sum(1, keepdims=True)]), NORMAL + RNG.normal(size=(120, 3))),
    "cauchy": (RNG.standard_cauchy(size=(120, 2)) * 1e9, RNG.standard_cauchy(size=(120, 2)) * 1e-9),
    "wide": (RNG.normal(size=(60, 40)), RNG.normal(size=(60, 30))),
    "binary": (RNG.integers(2, size=(120, 2)), RNG.integers(2, size=(120, 2)).astype(bool)),
    "wide_binary": (RNG.integers(2, size=(120, 12)), RNG.integers(2, size=(120, 12))),
    "huge_offset": (NORMAL + 1e12, NORMAL),
}  # fmt: skip


@pytest.mark.parametrize("method", ["auto", "gaussian", "student", "spiral", "ksg", "mixed_ksg", "infonce", "l1out"])
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_data_give_finite_numbers(name: str, method: str):
    result = estimate(*AWKWARD[name], method, settings=FitSettings(steps=2, hidden=4))

    assert math.isfinite(result.nats)
    assert math.isfinite(result.standard_error)


def test_monotone_copies_of_a_column_are_duplicates():
    seen = inspect("x", AWKWARD["monotone_copies"][0])

    assert seen.rows.shape == (120, 3)
    assert "2 duplicated" in seen.warnings[0]


def test_a_constant_variable_shares_nothing():
    result = estimate(np.ones(100), GOOD.repeat(2, 0)[:100, 0] + np.arange(100))

    assert result.nats == 0
    assert "constant" in result.reason


@pytest.mark.parametrize(
    ("x", "y", "options", "warning"),
    [
        (PAIR.sample(100, 0)[0], PAIR.sample(100, 0)[1], {"method": "gaussian"}, "100 rows are few for 2 . 2 columns"),
        (np.round(PAIR.sample(600, 0)[0]), PAIR.sample(600, 0)[1], {"method": "ksg"}, "x has 2 discrete or tied"),
        (PAIR.sample(600, 0)[0], PAIR.sample(600, 0)[0], {"method": "ksg"}, "a column in common"),
        (*tasks.gaussian_with_mi(6, 6).sample(600, 0), {"method": "infonce", "settings": ANCHOR_ONLY}, "within 10 % of the method's ceiling of 4.79"),
    ],
    ids=["few", "discrete", "shared", "ceiling"],
)  # fmt: skip
def test_doubtful_estimates_come_with_a_warning(x: object, y: object, options: dict[str, object], warning: str):
    assert any(re.search(warning, given) for given in estimate(x, y, **options).warnings)


def test_conditional_densities_claim_only_what_they_can():
    quick = FitSettings(steps=2, hidden=4)
    kinds = {
        task.name: estimate(*task.sample(300, seed=0), "ba", settings=quick).kind
        for task in (tasks.gaussian_dense(3, 1), tasks.gaussian_dense(1, 3), PAIR, tasks.zero_inflated_poisson())
    }

    assert list(kinds.values()) == ["lower", "lower", "neither", "neither"]
    club, l1out = (estimate(*PAIR.sample(600, seed=0), method, settings=quick) for method in ("club", "l1out"))
    assert (club.kind, l1out.kind) == ("upper", "neither")
    assert "an upper bound only if the learned q(y | x) is the true one" in club.warnings[-1]
    assert "it would be an upper bound if the learned q(y | x) were the true one" in l1out.warnings[-1]


def test_a_wrong_conditional_density_reads_far_below_the_truth_and_is_not_called_an_upper_bound():
    x, noise = np.random.default_rng(0).normal(size=(2, 2000, 1))
    y = x**2 + 0.1 * noise  # the untrained q is a linear regression, which sees nothing of it

    result = estimate(x, y, "club", settings=ANCHOR_ONLY)

    assert result.nats + 10 * result.standard_error < estimate(x, y, "ksg").nats
    assert result.kind == "neither"
    assert "clearly more on the same rows, so the learned q(y | x) is wrong" in result.warnings[-1]


def test_nothing_above_ln_n_is_called_a_lower_bound():
    result = estimate(*tasks.gaussian_with_mi(12.0, dim=3).sample(600, seed=0), "dv", settings=ANCHOR_ONLY)

    assert result.nats > math.log(120)
    assert result.kind == "neither"
    assert any("above ln N" in warning for warning in result.warnings)


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


def test_without_the_extra_the_package_imports_and_says_what_to_install():
    code = """
import sys
for name in ("scipy", "pandas", "matplotlib", "sklearn"):
    sys.modules[name] = None
import flatclr
print(flatclr.mi.tasks.student(1, 1, 1).mi_nats)
try:
    flatclr.mi.estimate([0.0] * 60, [1.0] * 60)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == [
        str(tasks.student(1, 1, 1).mi_nats),
        'flatclr.mi needs scipy, got no such module; pip install "flatclr[mi]".',
    ]


@pytest.mark.parametrize("constant", [0.1, 0.3, 1e9 + 0.1])
def test_a_column_of_equal_numbers_is_constant_whatever_the_number(constant: float) -> None:
    x, y = tasks.gaussian_pairs(1, pairs=1, correlation=0.8).sample(500, seed=0)
    padded = np.hstack([x, np.full((500, 1), constant)])
    result = estimate(padded, y, method="gaussian")
    assert "x has 1 constant column(s); they carry no information." in result.warnings
    assert result.nats == pytest.approx(estimate(x, y, method="gaussian").nats)


@pytest.mark.parametrize(("d", "rows"), [(25, 110), (15, 100), (5, 400)])
def test_the_gaussian_standard_error_is_its_spread_also_with_few_rows_for_the_width(d: int, rows: int) -> None:
    rng = np.random.default_rng(0)
    results = [estimate(rng.normal(size=(rows, d)), rng.normal(size=(rows, d)), "gaussian") for _ in range(40)]
    spread = np.std([result.nats for result in results])
    assert spread < 1.5 * np.median([result.standard_error for result in results])


@pytest.mark.parametrize("method", ["tuba", "flo", "smile", "interpolated", "club", "l1out", "nwj", "infonce"])
def test_a_trained_methods_standard_error_is_the_spread_over_fresh_rows(method: str) -> None:
    """One fit, read on many fresh samples: what the standard error of an evaluation split has to be."""
    task = tasks.gaussian_pairs(2, pairs=2, correlation=0.8)
    x, y = (as_tensor(v) for v in task.sample(1000, seed=0))
    generator = torch.Generator().manual_seed(0)
    reader: Any
    if method in ("club", "l1out"):
        learner = Conditional(x[:600], y[:600], hidden=32)
        fit(learner, (x[:600], y[:600]), (x[600:], y[600:]), FAST, generator)
        reader = partial(learner.read, method, entropy_nats=0.0)
    else:
        critic = make_critic("separable", 2, 2, hidden=32, copula=None)
        trained = VARIATIONAL[method](critic, 2, 2, 32)
        fit(trained, (x[:600], y[:600]), (x[600:], y[600:]), FAST, generator)
        reader = trained.read
    draws = 30 if method == "interpolated" else 60  # its jackknife takes twenty readings each
    readings = [reader(*(as_tensor(v) for v in task.sample(400, seed=seed))) for seed in range(1, draws + 1)]
    ratio = np.std([r.nats for r in readings]) / np.median([r.standard_error for r in readings])
    assert 0.7 < ratio < 1.4  # the spread of 60 draws is known to about a tenth, of 30 to an eighth


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "ksg", "critic": "joint"}, "critic must be None for method 'ksg'"),
        ({"method": "auto", "folds": 5}, "folds must be 1 for method 'auto'"),
        ({"seed": -1}, "seed must be a whole number from 0"),
    ],
)
def test_options_a_method_would_ignore_are_refused(options: dict[str, Any], message: str) -> None:
    x, y = tasks.gaussian_pairs(1, pairs=1, correlation=0.8).sample(100, seed=0)
    with pytest.raises(ValueError, match=message):
        estimate(x, y, **options)


def test_a_rare_level_that_the_training_rows_miss_breaks_nothing():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1000, 3)), rng.normal(size=(1000, 1))
    x[:, 1], x[:, 2] = 0, 0
    unseen = next(splits(1000, seed=0)).evaluation
    x[unseen[0], 1], x[unseen[1], 2] = 1, 1

    for method in ("auto", "infonce", "dv", "flatnce", "ba", "club", "gaussian", "student", "spiral"):
        result = estimate(x, y, method, settings=FitSettings(steps=5, hidden=4))
        assert math.isfinite(result.nats)
        assert method == "club" or abs(result.nats) < 0.2


def test_values_beyond_every_exponent_are_reported_and_written():
    x = np.random.default_rng(0).normal(size=(400, 1))
    result = estimate(x, x + 1e-3 * np.random.default_rng(1).normal(size=(400, 1)), "club", settings=ANCHOR_ONLY)

    assert result.nats > 710
    assert result.limits.nwj_variance == math.inf
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["limits"]["nwj_variance"] is None


@pytest.mark.parametrize("method", ["ksg", "ksg2", "mixed_ksg"])
def test_neighbours_say_the_most_they_can_and_warn_near_it(method: str):
    x = np.random.default_rng(0).normal(size=(300, 1))
    result = estimate(x, x + 1e-9 * np.random.default_rng(1).normal(size=(300, 1)), method)

    assert result.nats == pytest.approx(result.ceiling_nats, rel=0.02)
    assert result.nats <= result.ceiling_nats + 1e-9
    assert any("method's ceiling" in warning for warning in result.warnings)


def test_folds_of_a_few_rows_are_refused():
    with pytest.raises(ValueError, match="folds must leave at least 10 rows in each, got 20 for 60 rows"):
        estimate(*PAIR.sample(60, seed=0), "interpolated", folds=20)


def test_masked_values_are_missing_ones():
    x, y = PAIR.sample(100, seed=0)
    with pytest.raises(ValueError, match="must be finite, got NaN or Inf in 1 of 100 rows"):
        estimate(np.ma.masked_greater(x[:, 0], np.sort(x[:, 0])[-2]), y)


def test_seeds_of_numpy_are_whole_numbers():
    x, y = PAIR.sample(100, seed=0)
    assert estimate(x, y, "gaussian", seed=np.int64(3)).nats == estimate(x, y, "gaussian", seed=3).nats


def likert(rng: np.random.Generator, rows: int, items: int) -> np.ndarray:
    return rng.integers(1, 6, size=(rows, items))


INDEPENDENT = {
    "three items each": lambda rng, n: (likert(rng, n, 3), likert(rng, n, 3)),
    "two items each": lambda rng, n: (likert(rng, n, 2), likert(rng, n, 2)),
    "counts in five columns each": lambda rng, n: rng.poisson(3, size=(2, n, 5)),
    "counts": lambda rng, n: rng.poisson(10, size=(2, n)),
    "twenty levels": lambda rng, n: rng.integers(20, size=(2, n)),
    "forty levels": lambda rng, n: rng.integers(40, size=(2, n)),
    "eighty levels": lambda rng, n: rng.integers(80, size=(2, n)),
    "forty levels and a normal": lambda rng, n: (rng.integers(40, size=n), rng.normal(size=n)),
    "one of three columns": lambda rng, n: (np.c_[rng.integers(40, size=n), rng.normal(size=n)], rng.normal(size=n)),
    "zeros": lambda rng, n: np.maximum(rng.normal(size=(2, n)), 0),
    "rounded": lambda rng, n: rng.normal(size=(2, n)).round(1),
}


@pytest.mark.parametrize("rows", [1000, 3000])
@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_tied_columns_share_nothing(name: str, rows: int):
    for seed in (0, 1):
        result = estimate(*INDEPENDENT[name](np.random.default_rng(seed), rows), settings=FAST)

        assert result.nats < 3 * result.standard_error + 0.01
        assert result.nats > -0.05  # a lower bound of what was learned in vain


def table_nats(table: np.ndarray) -> float:
    """Information of a joint table of probabilities."""
    outer = table.sum(1, keepdims=True) * table.sum(0, keepdims=True)
    seen = table > 0
    return float(np.sum(table[seen] * np.log(table[seen] / outer[seen])))


def drawn(table: np.ndarray, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    place = np.random.default_rng(seed).choice(table.size, rows, p=table.ravel())
    return np.unravel_index(place, table.shape)


def channel(levels: int) -> np.ndarray:
    """Codes without order: a permutation, but any code with probability 0.3."""
    order = np.random.default_rng(1).permutation(levels)
    return (0.7 * np.eye(levels)[order] + 0.3 / levels) / levels


def rounded_normals(digits: int, correlation: float = 0.8) -> np.ndarray:
    """Probabilities of the places that two rounded normals meet in, by a fine grid along x."""
    step = 10.0**-digits
    edges = np.arange(-5, 5 + 2 * step, step) - step / 2
    inside = np.linspace(0, step, 41)[:-1] + step / 80
    x = edges[:-1, None] + inside
    scale = math.sqrt(1 - correlation**2)
    below = norm.cdf((edges[:, None, None] - correlation * x) / scale)
    table = (np.diff(below, axis=0) * norm.pdf(x)).mean(2).T
    return table / table.sum()


TABLES = {
    "few places": (np.random.default_rng(0).dirichlet(np.full(48, 0.5)).reshape(6, 8), 1500),
    "forty codes": (channel(40), 2000),
    "hundred codes": (channel(100), 3000),
    "rounded to whole numbers": (rounded_normals(0), 1000),
    "rounded to tenths": (rounded_normals(1), 500),
    "rounded to tenths, more rows": (rounded_normals(1), 3000),
    "rounded to hundredths": (rounded_normals(2), 2000),
}


@pytest.mark.parametrize("name", TABLES)
def test_discrete_pairs_are_read_near_the_information_of_their_table(name: str):
    table, rows = TABLES[name]
    for seed in (0, 1):
        result = estimate(*drawn(table, rows, seed), settings=FAST)

        assert abs(result.nats - table_nats(table)) < 3 * result.standard_error + 0.02


def codes(levels: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """A code without order, a normal around its mean, and their information by quadrature."""
    means = np.random.default_rng(7).normal(size=levels)
    rng = np.random.default_rng(seed)
    code = rng.integers(levels, size=rows)
    t = np.linspace(-6, 6, 6001)
    density = norm.pdf(t[:, None], means, 0.3).mean(1)
    nats = float(-np.sum(density * np.log(density)) * (t[1] - t[0]) - norm.entropy(scale=0.3))
    return code, means[code] + 0.3 * rng.normal(size=rows), nats


@pytest.mark.parametrize(("levels", "rows"), [(10, 500), (45, 1000), (55, 1000), (100, 1000), (100, 10_000)])
def test_codes_need_no_order_and_may_be_one_hot(levels: int, rows: int):
    code, y, truth = codes(levels, rows, seed=0)
    result = estimate(code, y)

    assert abs(result.nats - truth) < 3 * result.standard_error + 0.02
    assert "same levels" in result.reason
    assert not any("ordered" in warning for warning in result.warnings)
    if levels <= 55:
        assert estimate(np.eye(levels)[code], y).nats == pytest.approx(result.nats, abs=1e-9)


def test_codes_with_few_rows_each_are_taken_as_ordered_unless_they_are_one_hot():
    code, y, truth = codes(400, 1000, seed=0)
    result, one_hot = estimate(code, y), estimate(np.eye(400)[code], y)

    (warning,) = [w for w in result.warnings if "ordered" in w]
    assert warning.startswith("1 tied column(s) have too many levels")
    assert "one-hot encode" in warning
    assert result.nats < truth / 2
    assert not any("ordered" in w for w in one_hot.warnings)
    assert abs(one_hot.nats - truth) < 3 * one_hot.standard_error + 0.02


@pytest.mark.parametrize("rows", [1000, 3000])
def test_a_column_with_many_zeros_is_read_near_the_truth(rows: int):
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, rows))
    y = 0.8 * x + 0.6 * noise
    a, b = np.meshgrid(np.linspace(0.01, 5.99, 300), np.linspace(-6, 6, 601), indexing="ij")
    above = norm.pdf(a) * norm.pdf(b, 0.8 * a, 0.6)
    at_zero = norm.cdf(0, 0.8 * b[0], 0.6) * norm.pdf(b[0])
    truth = 0.02**2 * np.sum(above * np.log(above / (norm.pdf(a) * norm.pdf(b))))
    truth += 0.02 * np.sum(at_zero * np.log(at_zero / (0.5 * norm.pdf(b[0]))))

    result = estimate(np.maximum(x, 0), y)

    assert abs(result.nats - truth) < 3 * result.standard_error + 0.02


@pytest.mark.parametrize(("rows", "near"), [(1000, 0.1), (10_000, 0.03)])
def test_rounded_copies_are_counted_before_they_are_dithered(rows: int, near: float):
    x = np.random.default_rng(0).normal(size=rows).round(2)
    result = estimate(x, -x)

    assert "counted" in result.reason
    assert result.nats == pytest.approx(norm.entropy() + math.log(100), abs=near)


def test_dithering_does_not_repeat_the_draws_that_made_the_rows():
    draws = np.random.default_rng(0).uniform(size=(2, 2000))

    result = estimate(*np.floor(40 * draws), seed=0)

    assert result.nats < 3 * result.standard_error
