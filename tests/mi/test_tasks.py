"""The known answers, each derived a second way: quadrature, another closed form, or scipy's densities."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from flatclr.mi import tasks
from flatclr.mi.tasks import Task

ALL = {**tasks.tuning_tasks(), **tasks.benchmark_tasks(), **tasks.unfamiliar_tasks()}


@pytest.mark.parametrize("name", ALL)
def test_samples_have_the_stated_shapes_and_follow_the_seed(name: str):
    task = ALL[name]
    x, y = task.sample(60, seed=3)
    again, other = task.sample(60, seed=3), task.sample(60, seed=4)

    assert x.shape == (60, task.dim_x)
    assert y.shape == (60, task.dim_y)
    assert np.isfinite(x).all()
    assert np.isfinite(y).all()
    np.testing.assert_array_equal(x, again[0])
    np.testing.assert_array_equal(y, again[1])
    assert not np.array_equal(x, other[0])


def test_the_tasks_judged_on_are_others_than_those_tuned_on():
    tuned = {(task.name, round(task.mi_nats, 9)) for task in tasks.tuning_tasks().values()}
    judged = {(task.name, round(task.mi_nats, 9)) for task in tasks.benchmark_tasks().values()}

    assert not tuned & judged
    assert len(judged) >= 22


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


@pytest.mark.parametrize("noise", [0.1, 0.2, 0.5, 0.75])
def test_additive_noise_agrees_with_the_entropy_of_the_convolution(noise: float):
    def density(y: float) -> float:
        return max(0.0, min(1.0, y + noise) - max(0.0, y - noise)) / (2 * noise)

    def surprise(y: float) -> float:
        p = density(y)
        return -p * math.log(p) if p > 0 else 0.0

    entropy, _ = integrate.quad(surprise, -noise, 1 + noise, points=[noise, 1 - noise], limit=200)

    assert tasks.additive_uniform(noise).mi_nats == pytest.approx(entropy - math.log(2 * noise), abs=1e-6)


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


@pytest.mark.parametrize("symbols", [2, 5, 9])
def test_discrete_uniform_is_the_entropy_of_x_less_what_y_leaves_open(symbols: int):
    posterior_entropy = 0.0
    for cell in range(symbols + 1):  # y in [cell, cell + 1) comes from x = cell or x = cell - 1
        sources = [x for x in (cell - 1, cell) if 0 <= x < symbols]
        posterior_entropy += len(sources) / (2 * symbols) * math.log(len(sources))

    assert tasks.discrete_uniform(symbols).mi_nats == pytest.approx(math.log(symbols) - posterior_entropy)


@pytest.mark.parametrize("zeros", [0.0, 0.15, 0.6])
def test_zero_inflated_poisson_agrees_with_adaptive_quadrature(zeros: float):
    counts = np.arange(80)
    marginal = (1 - zeros) * 0.5 ** (counts + 1)
    marginal[0] += zeros

    def divergence(x: float) -> float:
        given_x = (1 - zeros) * stats.poisson.pmf(counts, x)
        given_x[0] += zeros
        seen = given_x > 0
        return float(math.exp(-x) * (given_x[seen] * np.log(given_x[seen] / marginal[seen])).sum())

    expected, _ = integrate.quad(divergence, 0, 40, limit=200)

    assert tasks.zero_inflated_poisson(zeros).mi_nats == pytest.approx(expected, abs=1e-6)


def test_the_published_zero_inflated_value_counts_both_kinds_of_zero_as_told_apart():
    k = np.arange(1, 80)
    without_zeros = 2 * math.log(2) - np.euler_gamma - (np.log(k) * 0.5**k).sum()

    assert tasks.zero_inflated_poisson(0.0).mi_nats == pytest.approx(without_zeros, abs=1e-6)
    assert tasks.zero_inflated_poisson(0.15).mi_nats < 0.85 * without_zeros - 0.02


@pytest.mark.parametrize("make", [tasks.normal_cdf, tasks.half_cube, tasks.asinh, tasks.wiggly])
def test_maps_of_margins_are_strictly_increasing(make: object):
    grid = np.linspace(-4, 4, 4001)[:, None]
    line = Task("line", 0.0, 1, 1, lambda n, rng: (grid, grid))

    for mapped in make(line).draw(0, np.random.default_rng(0)):
        assert (np.diff(mapped[:, 0]) > 0).all()


def test_bimodal_margins_are_the_mixtures():
    x, y = tasks.bimodal().sample(4000, seed=0)
    cdf = stats.norm.cdf

    assert stats.kstest(x[:, 0], lambda v: 0.3 * cdf(v) + 0.7 * cdf(v - 5)).pvalue > 0.01
    assert stats.kstest(y[:, 0], lambda v: 0.5 * cdf(v + 1) + 0.5 * cdf(v - 3)).pvalue > 0.01


@pytest.mark.parametrize("dim", [2, 3, 7])
def test_a_spiral_keeps_norms_and_can_be_turned_back(dim: int):
    base = tasks.gaussian_pairs(dim)
    plain, turned = base.sample(50, seed=1), tasks.spiral(base, speed=0.7).sample(50, seed=1)
    first_y = 1 if dim > 2 else 0

    for before, after, i in zip(plain, turned, (0, first_y), strict=True):
        squared_norm = (after**2).sum(1)
        np.testing.assert_allclose(squared_norm, (before**2).sum(1))
        np.testing.assert_allclose(tasks.turned(after, i, i + 1, -0.7 * squared_norm), before, atol=1e-9)
        assert np.abs(after - before).max() > 0.5


def test_a_swiss_roll_can_be_unrolled():
    plain = tasks.gaussian_pairs(1, pairs=1, correlation=0.75).sample(50, seed=1)[0]
    rolled = tasks.swiss_roll().sample(50, seed=1)[0]

    radius = 21 * np.hypot(rolled[:, 0], rolled[:, 1])
    np.testing.assert_allclose(radius, 1.5 * math.pi * (1 + 2 * stats.norm.cdf(plain[:, 0])))


@pytest.mark.parametrize("correlation", [0.5, 0.9])
def test_a_sign_mixture_is_the_mean_log_ratio_of_scipys_densities(correlation: float):
    task = tasks.sign_mixture(2, correlation)
    x, y = task.sample(40_000, seed=0)
    both = [stats.multivariate_normal(cov=[[1, rho], [rho, 1]]) for rho in (correlation, -correlation)]

    joint = [sum(part.pdf(np.stack([x[:, i], y[:, i]], 1)) for part in both) / 2 for i in range(2)]
    ratio = np.log(joint).sum(0) - stats.norm.logpdf(x).sum(1) - stats.norm.logpdf(y).sum(1)

    assert abs(ratio.mean() - task.mi_nats) < 4 * ratio.std() / math.sqrt(len(ratio))
    assert abs(np.corrcoef(x[:, 0], y[:, 0])[0, 1]) < 0.02


@pytest.mark.parametrize("noise", [0.05, 0.25])
def test_circular_noise_leaves_y_uniform_and_takes_the_entropy_of_a_box(noise: float):
    x, y = tasks.circular(1, noise).sample(4000, seed=0)
    around = (y - x + 0.5) % 1 - 0.5

    assert stats.kstest(y[:, 0], stats.uniform.cdf).pvalue > 0.01
    assert stats.kstest(around[:, 0], stats.uniform(-noise, 2 * noise).cdf).pvalue > 0.01
    assert tasks.circular(3, noise).mi_nats == pytest.approx(3 * (0 - math.log(2 * noise)))  # H(y) - H(y | x)


def test_folding_hides_the_sign_and_nothing_else():
    x, y = tasks.folded(1, 0.3).sample(4000, seed=0)
    noise = y - np.abs(x)

    assert stats.kstest(np.abs(x[:, 0]), stats.uniform.cdf).pvalue > 0.01
    assert stats.kstest(noise[:, 0], stats.uniform(-0.3, 0.6).cdf).pvalue > 0.01
    assert abs(np.corrcoef(np.abs(x[:, 0]), noise[:, 0])[0, 1]) < 4 / math.sqrt(4000)
    assert tasks.folded(2, 0.3).mi_nats == pytest.approx(2 * tasks.additive_uniform(0.3).mi_nats)


@pytest.mark.parametrize("dim", [2, 5])
def test_a_shear_can_be_undone(dim: int):
    base = tasks.gaussian_pairs(dim)
    plain, moved = base.sample(50, seed=1), tasks.sheared(base, 0.7).sample(50, seed=1)

    for before, after in zip(plain, moved, strict=True):
        back = after.copy()
        for j in range(1, dim, 2):
            back[:, j] -= 0.7 * np.sin(2 * after[:, j - 1])
        np.testing.assert_allclose(back, before)
        assert np.abs(after - before).max() > 0.5


def test_rotations_keep_every_inner_product_and_stirring_is_two_of_them_around_a_stretch():
    base = tasks.gaussian_dense(4)
    for turned, other in (
        (tasks.rotated(base, seed=3), base),
        (tasks.stirred(base, seed=3), tasks.half_cube(tasks.rotated(base, seed=3))),
    ):
        for after, before in zip(turned.sample(30, seed=1), other.sample(30, seed=1), strict=True):
            np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-9)
            assert np.abs(after - before).max() > 0.5
        assert turned.mi_nats == base.mi_nats


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tasks.gaussian_pairs(2, pairs=3), "pairs must be a whole number >= 1 and <= 2, got 3"),
        (lambda: tasks.gaussian_pairs(2, correlation=1.0), "correlation must be a finite number > -1 and < 1, got 1"),
        (lambda: tasks.student(1, 1, 0), "df must be a finite number > 0, got 0"),
        (lambda: tasks.spiral(tasks.additive_uniform(0.1)), "a spiral must have at least 2 coordinates, got 1 and 1"),
        (lambda: tasks.circular(1, 0.5), "noise must be a finite number > 0 and < 0.5, got 0.5"),
        (lambda: tasks.sign_mixture(1, 1.0), "correlation must be a finite number > -1 and < 1, got 1"),
        (lambda: tasks.gaussian_pairs(2).sample(0, seed=0), "n must be a whole number >= 1, got 0"),
    ],
)
def test_impossible_tasks_are_refused(call: object, message: str):
    with pytest.raises(ValueError, match=message):
        call()
