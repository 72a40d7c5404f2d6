"""Gaussian and Student tasks, their answers derived a second way."""

import math

import numpy as np
import pytest
from scipy import stats

from flatclr.mi import tasks


@pytest.mark.parametrize(("pairs", "correlation"), [(1, 0.75), (2, 0.8), (5, -0.3)])
def test_independent_pairs_add_up(pairs: int, correlation: float):
    task = tasks.gaussian_pairs(6, pairs=pairs, correlation=correlation)

    assert task.mi_nats == pytest.approx(-pairs / 2 * math.log(1 - correlation**2))


@pytest.mark.parametrize(("dim_x", "dim_y"), [(1, 1), (3, 3), (25, 25), (2, 5)])
def test_dense_correlation_has_one_canonical_correlation_that_of_the_sums(dim_x: int, dim_y: int):
    c = 0.5
    variance = [d + d * (d - 1) * c for d in (dim_x, dim_y)]
    rho = dim_x * dim_y * c / math.sqrt(variance[0] * variance[1])

    assert tasks.gaussian_dense(dim_x, dim_y, correlation=c).mi_nats == pytest.approx(-0.5 * math.log(1 - rho**2))


def test_the_staircase_has_the_nats_it_is_named_for():
    for cubic in (False, True):
        assert [task.mi_nats for task in tasks.staircase(cubic=cubic)] == pytest.approx([2, 4, 6, 8, 10])


@pytest.mark.parametrize(("dim_x", "dim_y", "df"), [(1, 1, 1.0), (2, 2, 1.0), (2, 1, 3.0), (5, 5, 2.0)])
def test_student_information_is_the_mean_log_ratio_of_scipys_densities(dim_x: int, dim_y: int, df: float):
    dispersion = 0.3 + 0.7 * np.eye(dim_x + dim_y)
    task = tasks.student(dim_x, dim_y, df, dispersion)
    x, y = task.sample(40_000, seed=0)
    own = [stats.multivariate_t(shape=dispersion[v, v], df=df) for v in (slice(dim_x), slice(dim_x, None))]
    joint = stats.multivariate_t(shape=dispersion, df=df)

    ratio = joint.logpdf(np.hstack([x, y])) - own[0].logpdf(x).ravel() - own[1].logpdf(y).ravel()

    assert abs(ratio.mean() - task.mi_nats) < 4 * ratio.std() / math.sqrt(len(ratio))


def test_student_of_identity_dispersion_has_the_published_value():
    assert tasks.student(1, 1, 1).mi_nats == pytest.approx(0.2242, abs=5e-5)
