"""Tasks made by noise, their answers derived a second way: quadrature, another closed form, or scipy's densities."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from flatclr.mi import tasks


@pytest.mark.parametrize("noise", [0.1, 0.2, 0.5, 0.75])
def test_additive_noise_agrees_with_the_entropy_of_the_convolution(noise: float):
    def density(y: float) -> float:
        return max(0.0, min(1.0, y + noise) - max(0.0, y - noise)) / (2 * noise)

    def surprise(y: float) -> float:
        p = density(y)
        return -p * math.log(p) if p > 0 else 0.0

    entropy, _ = integrate.quad(surprise, -noise, 1 + noise, points=[noise, 1 - noise], limit=200)

    assert tasks.additive_uniform(noise).mi_nats == pytest.approx(entropy - math.log(2 * noise), abs=1e-6)


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
