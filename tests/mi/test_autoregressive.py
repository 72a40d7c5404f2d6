"""Autoregressive mixtures: densities that integrate to one, and look at earlier columns only."""

import math

import numpy as np
import pytest
import torch

from flatclr.mi import FitSettings, estimate, tasks
from flatclr.mi.autoregressive import COMPONENTS, Density, MixtureNetwork, Regression


def shaken(dim_x: int, dim_y: int) -> MixtureNetwork:
    torch.manual_seed(0)
    network = MixtureNetwork(dim_x, dim_y, hidden=12)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return network


def test_the_density_of_a_column_is_the_mixture_its_network_names():
    network, x, residual = shaken(2, 1), torch.randn(1, 2), torch.tensor([[0.4]])
    inputs = torch.cat([x, torch.zeros(1, 1)], 1)
    hidden = torch.nn.functional.silu(network.first(inputs))
    hidden = hidden + torch.nn.functional.silu(network.second(hidden))
    outputs = network.last(hidden).detach().double().view(COMPONENTS, 3).tolist()
    total = sum(math.exp(w) for w, _, _ in outputs)
    expected = math.log(
        sum(
            math.exp(w) / total * math.exp(-(((0.4 - m) / math.exp(s)) ** 2) / 2) / math.exp(s) / math.sqrt(2 * math.pi)
            for w, m, s in outputs
        )
    )

    assert float(network.log_density(inputs, residual).detach()) == pytest.approx(expected, abs=1e-5)


def test_the_density_integrates_to_one_given_anything():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 400, 1))
    y = 0.7 * x + y
    density = Density(Regression.fit(x, y), shaken(1, 1))
    grid = np.linspace(-30, 30, 6001)[:, None]

    for given in (-1.0, 0.0, 2.0):
        mass = density.log_density(np.full_like(grid, given), grid).exp().sum() * (grid[1, 0] - grid[0, 0])
        assert float(mass) == pytest.approx(1, abs=1e-3)


def test_a_column_depends_on_x_and_on_the_columns_before_it_only():
    network = shaken(2, 3)
    inputs = torch.randn(1, 5, requires_grad=True)
    for column in range(3):
        hidden = torch.nn.functional.silu(network.first(inputs))
        hidden = hidden + torch.nn.functional.silu(network.second(hidden))
        named = network.last(hidden).view(3, COMPONENTS, 3)[column].sum()
        (gradient,) = torch.autograd.grad(named, inputs)
        seen = gradient[0].abs() > 0
        assert seen.tolist() == [True, True, *(other < column for other in range(3))]


def test_residuals_keep_the_digits_that_float32_has_not():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 1))
    noise = rng.normal(size=(2000, 1))
    regression = Regression.fit(x, x + 1e-7 * noise)

    assert np.corrcoef(regression.residuals(x, x + 1e-7 * noise)[:, 0], noise[:, 0])[0, 1] > 0.999


@pytest.mark.parametrize("dims", [(1, 1), (3, 2)])
def test_the_difference_of_entropies_is_near_the_truth_of_gaussians(dims: tuple[int, int]):
    task = tasks.gaussian_dense(*dims, correlation=0.7)
    result = estimate(*task.sample(1500, seed=0), "doe", settings=FitSettings(steps=60, hidden=16, check_every=20))

    assert result.kind == "neither"
    assert abs(result.nats - task.mi_nats) < 3 * result.standard_error + 0.05


def test_a_regression_of_few_rows_is_their_mean():
    """As many inputs as rows fit them exactly, and leave other rows billions of deviations off."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 20)), 5 + rng.normal(size=(30, 1))

    few, enough = Regression.fit(x[:, :20], y), Regression.fit(x[:, :14], y)

    assert few.weights[0][:-1].tolist() == [0.0] * 20
    assert few.weights[0][-1] == pytest.approx(y.mean())
    assert few.deviations[0] == pytest.approx(y.std())
    assert np.all(enough.weights[0] != 0.0)
