"""The exact moments that say where a variance can be measured."""

from __future__ import annotations

import math

import pytest
import torch

from flatclr.studies.experiments.bounds_and_limits import _moment, log_ratio, relative_error
from flatclr.studies.gaussian_pairs import GaussianPairs


def test_moments_of_the_density_ratio_are_those_of_its_integral() -> None:
    pairs = GaussianPairs(0.02, 1)
    grid = torch.linspace(-9, 9, 1201, dtype=torch.float64)
    density = torch.exp(-grid.square() / 2) / math.sqrt(2 * math.pi) * (grid[1] - grid[0])
    ratio = log_ratio(pairs, grid[:, None], grid[:, None]).exp()
    for power in range(5):
        assert _moment(pairs, power) == pytest.approx((density @ ratio**power @ density).item(), rel=1e-6)
    assert _moment(GaussianPairs(2.0, 20), 2) == pytest.approx(math.exp(4.0))  # chi^2 + 1


def test_a_variance_without_a_fourth_moment_has_no_standard_error() -> None:
    assert relative_error(GaussianPairs(2.0, 20), 10**6) == math.inf
    assert relative_error(GaussianPairs(0.25, 20), 10**6) < 0.01
