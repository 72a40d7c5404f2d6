"""Normal scores, and copulas with a closed-form log ratio."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flatclr.mi import copula, gaussian, tasks
from flatclr.mi.margins import RankNormal
from flatclr.mi.rotation import Spirals, Turn, find_spirals, normal_scores


@given(st.integers(0, 10_000), st.sampled_from(["normal", "cauchy", "exponential", "tied"]))
def test_normal_scores_are_strictly_increasing_inside_and_beyond_the_training_rows(seed: int, kind: str):
    rng = np.random.default_rng(seed)
    rows = {
        "normal": rng.normal(size=40),
        "cauchy": rng.standard_cauchy(size=40),
        "exponential": rng.exponential(size=40),
        "tied": rng.integers(4, size=40).astype(float),
    }[kind]
    margins = RankNormal.fit(rows[:, None])
    low, high = rows.min(), rows.max()
    reach = high - low
    grid = np.unique(np.concatenate([rows, np.linspace(low - 2 * reach, high + 2 * reach, 50)]))

    scores = margins(grid[:, None])[:, 0]

    assert (np.diff(scores)[np.diff(grid) > 1e-9 * reach] > 0).all()


def test_ties_share_the_score_of_their_middle_rank():
    rows = np.array([1.0, 1.0, 1.0, 2.0, 5.0, 5.0])[:, None]

    scores = RankNormal.fit(rows)(rows)[:, 0]

    np.testing.assert_allclose(scores, stats.norm.ppf(np.array([2, 2, 2, 4, 5.5, 5.5]) / 7))


def test_monotone_maps_of_the_margins_leave_the_scores_alone():
    rows = np.random.default_rng(0).normal(size=(500, 2))

    np.testing.assert_allclose(RankNormal.fit(rows)(rows), normal_scores(np.sinh(rows) ** 3), atol=1e-12)


def random_covariance(dim: int, seed: int = 0) -> np.ndarray:
    mix = np.random.default_rng(seed).normal(size=(dim, dim + 2))
    return mix @ mix.T / dim


def test_canonical_correlations_solve_the_generalised_eigenproblem():
    covariance, dim_x = random_covariance(7), 3
    x, y, xy = covariance[:3, :3], covariance[3:, 3:], covariance[:3, 3:]
    squared = np.linalg.eigvals(np.linalg.inv(x) @ xy @ np.linalg.inv(y) @ xy.T).real

    rho = gaussian.canonical_correlations(covariance, dim_x)

    np.testing.assert_allclose(np.sort(rho**2), np.sort(squared))


def test_gaussian_log_ratio_is_the_difference_of_scipys_log_densities():
    covariance = random_covariance(5)
    rows = np.random.default_rng(1).normal(size=(20, 5))
    x, y = slice(0, 2), slice(2, 5)

    def density(v: slice) -> np.ndarray:
        return stats.multivariate_normal(cov=covariance[v, v]).logpdf(rows[:, v])

    ratio = gaussian.QuadraticRatio.of(covariance, 2)(rows[:, x], rows[:, y])

    np.testing.assert_allclose(ratio, density(slice(0, 5)) - density(x) - density(y), atol=1e-10)


@pytest.mark.parametrize(("dim", "rows"), [(5, 100), (20, 150), (10, 600)])
def test_the_plug_in_value_is_unbiased_after_correction(dim: int, rows: int):
    task = tasks.gaussian_pairs(dim, pairs=min(dim, 3), correlation=0.6)
    values = []
    for seed in range(150):
        covariance = np.cov(np.hstack(task.sample(rows, seed)), rowvar=False)
        values.append(gaussian.gaussian_nats(covariance, dim) - gaussian.plug_in_bias_nats(rows, dim, dim))

    assert abs(np.mean(values) - task.mi_nats) < 4 * np.std(values) / math.sqrt(len(values))


def test_the_correction_is_about_half_the_parameters_over_the_rows():
    assert gaussian.plug_in_bias_nats(100_000, 10, 7) == pytest.approx(10 * 7 / 200_000, rel=0.01)


def test_shrinking_helps_where_rows_are_few_and_fades_where_they_are_many():
    truth = np.eye(60)
    few, many = (np.random.default_rng(0).normal(size=(rows, 60)) for rows in (80, 10_000))
    shrunk, plain = gaussian.shrunk_correlation(few), gaussian.correlation_of(few)

    assert np.linalg.norm(shrunk - truth) < 0.3 * np.linalg.norm(plain - truth)
    related = many + many[:, [0]]
    np.testing.assert_allclose(gaussian.shrunk_correlation(related), gaussian.correlation_of(related), atol=5e-3)


@pytest.mark.parametrize("df", [1.0, 3.0])
def test_student_copula_finds_degrees_of_freedom_and_information_whatever_the_margins(df: float):
    dispersion = 0.4 + 0.6 * np.eye(4)
    task = tasks.asinh(tasks.student(2, 2, df, dispersion))
    fitted = copula.fit_student(*task.sample(4000, seed=0))

    assert fitted.df == pytest.approx(df, rel=0.15)
    np.testing.assert_allclose(fitted.correlation, dispersion, atol=0.08)
    assert fitted.plug_in_nats == pytest.approx(task.mi_nats, abs=0.06)  # four standard errors


def test_student_log_ratio_is_the_difference_of_scipys_log_densities():
    fitted = copula.fit_student(*tasks.student(2, 1, 2).sample(500, seed=0))
    z = np.random.default_rng(1).normal(size=(30, 3))
    t = stats.t.ppf(stats.norm.cdf(z), fitted.df)

    def density(v: slice) -> np.ndarray:
        return stats.multivariate_t(shape=fitted.correlation[v, v], df=fitted.df).logpdf(t[:, v]).ravel()

    expected = density(slice(0, 3)) - density(slice(0, 2)) - density(slice(2, 3))

    np.testing.assert_allclose(fitted.log_ratio(z[:, :2], z[:, 2:]), expected, atol=1e-3)


def test_gaussian_data_have_no_student_tails():
    fitted = copula.fit_student(*tasks.gaussian_pairs(3).sample(3000, seed=0))

    assert fitted.df > 30


@pytest.mark.parametrize(("dim", "speed"), [(3, 1 / 3), (3, 1.0), (10, 1 / 3)])
def test_a_spiral_is_found_and_undone(dim: int, speed: float):
    base = tasks.gaussian_pairs(dim)
    fitted = copula.fit_spiral(*tasks.spiral(base, speed=speed).sample(3000, seed=0))

    assert [(turn.i, turn.j) for turn in fitted.spirals.x] == [(0, 1)]
    assert [(turn.i, turn.j) for turn in fitted.spirals.y] == [(1, 2)]
    assert fitted.spirals.x[0].speed == pytest.approx(-speed, abs=0.02)
    assert fitted.plug_in_nats == pytest.approx(base.mi_nats, abs=0.09)  # four standard errors


def test_angles_that_grow_with_the_norm_itself_are_found_too():
    base = tasks.gaussian_pairs(3)
    turned = tasks.mapped(base, "turned", x=lambda v: tasks.turned(v, 0, 2, 1.5 * np.linalg.norm(v, axis=1)))
    fitted = copula.fit_spiral(*turned.sample(3000, seed=0))

    assert fitted.spirals.power == 1
    assert [(turn.i, turn.j) for turn in fitted.spirals.x] == [(0, 2)]
    assert fitted.plug_in_nats == pytest.approx(base.mi_nats, abs=0.09)


def test_a_spiral_of_uniform_margins_about_the_origin_is_undone():
    base = tasks.gaussian_pairs(3)
    fitted = copula.fit_spiral(*tasks.spiral(tasks.normal_cdf(base)).sample(4000, seed=0))

    assert fitted.spirals.margins is None
    assert fitted.plug_in_nats == pytest.approx(base.mi_nats, abs=0.08)


@pytest.mark.parametrize("task", [tasks.gaussian_dense(4), tasks.student(3, 3, 2)], ids=["dense", "student"])
def test_no_spiral_is_seen_where_there_is_none(task: tasks.Task):
    assert find_spirals(*task.sample(2000, seed=0)) == Spirals()


def test_turns_follow_one_another_and_are_undone_in_reverse():
    x, y = tasks.gaussian_pairs(4).sample(20, seed=0)
    there = Spirals(x=(Turn(0, 1, 0.3), Turn(1, 2, -0.2)))
    back = Spirals(x=(Turn(1, 2, 0.2), Turn(0, 1, -0.3)))

    np.testing.assert_allclose(back(*there(x, y))[0], x)


@pytest.mark.parametrize(
    ("task", "family", "fits"),
    [
        (tasks.gaussian_pairs(5, pairs=5, correlation=0.9), copula.fit_gaussian, True),
        (tasks.student(3, 3, 3), copula.fit_student, True),
        (tasks.student(3, 3, 3), copula.fit_gaussian, False),
        (tasks.sheared(tasks.gaussian_pairs(4)), copula.fit_gaussian, False),
        (tasks.sheared(tasks.student(4, 4, 3)), copula.fit_student, False),
    ],
    ids=["gaussian", "student", "tails", "sheared", "sheared student"],
)
def test_a_family_fits_its_own_rows_and_not_others(task: tasks.Task, family: Any, fits: bool):
    x, y = task.sample(3000, seed=0)

    assert family(x, y).fits(x, y) is fits
