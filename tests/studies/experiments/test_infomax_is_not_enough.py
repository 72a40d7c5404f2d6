"""The readout that an invertible encoder is trained against, against the regression it stands for."""

from __future__ import annotations

import torch

from flatclr.studies.experiments.infomax_is_not_enough import ridge_r2


def test_the_ridge_r2_is_that_of_the_normal_equations() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    labels = torch.arange(30) % 3
    x, y = features - features.mean(0), torch.eye(3, dtype=torch.float64)[labels]
    y = y - y.mean(0)
    ridge = 0.1
    weights = torch.linalg.solve(x.T @ x + 30 * ridge * torch.eye(5, dtype=torch.float64), x.T @ y)
    expected = 1 - (y - x @ weights).square().sum() / y.square().sum()
    torch.testing.assert_close(ridge_r2(features, labels, ridge), expected)
