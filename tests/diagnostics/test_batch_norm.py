from __future__ import annotations

import math

import torch
from torch import nn

from flatclr.diagnostics import batch_norm_health


def settled(units: int, batch: torch.Tensor) -> nn.BatchNorm1d:
    norm = nn.BatchNorm1d(units, momentum=None)
    norm(batch)
    return norm


def test_units_below_zero_or_without_spread_are_dead() -> None:
    batch = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    norm = settled(8, batch)
    with torch.no_grad():
        norm.bias[:2] = -20  # a ReLU takes all of them
        norm.weight[2] = 0  # says the same of every image
        norm.bias[2] = 1
    health = batch_norm_health(nn.Sequential(norm, nn.ReLU()), batch)
    assert health is not None
    assert health.dead_units == 3 / 8


def test_the_gap_of_statistics_is_shift_plus_log_ratio() -> None:
    batch = torch.randn(1000, 3, generator=torch.Generator().manual_seed(1)).double()
    norm = nn.BatchNorm1d(3).double()
    variance, mean = torch.var_mean(batch, 0, correction=0)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(mean + 2 * variance.sqrt())
    norm.running_var.copy_(variance / math.e**2)
    health = batch_norm_health(norm, batch)
    assert health is not None
    assert abs(health.statistics_gap - (2 + 1)) < 1e-3


def test_statistics_of_the_batch_itself_have_no_gap_and_the_network_is_left_as_it_is() -> None:
    batch = torch.randn(300, 4, generator=torch.Generator().manual_seed(2))
    norm = settled(4, batch).train()
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    health = batch_norm_health(norm, batch)
    assert health is not None
    assert health.statistics_gap < 0.01
    assert norm.training
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    assert not norm._forward_hooks


def test_a_network_without_batch_normalisation_has_no_health() -> None:
    assert batch_norm_health(nn.Linear(3, 2), torch.zeros(4, 3)) is None
