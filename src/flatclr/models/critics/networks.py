"""The small network that critics, densities and classifiers are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WithSquaredNorm(nn.Module):
    """The coordinates, and their mean square: dependence through the norm is common and hard to learn from scratch."""

    def forward(self, rows_Nd: Tensor) -> Tensor:
        return torch.cat([rows_Nd, rows_Nd.square().mean(1, keepdim=True)], 1)


def network(inputs: int, outputs: int, hidden: int) -> nn.Sequential:
    """Two hidden layers on the coordinates and their mean square."""
    return nn.Sequential(
        WithSquaredNorm(),
        nn.Linear(inputs + 1, hidden),
        nn.SiLU(),
        nn.Linear(hidden, hidden),
        nn.SiLU(),
        nn.Linear(hidden, outputs),
    )


def start_at_zero(net: nn.Sequential, outputs: slice = slice(None)) -> None:
    """Make these outputs of a network zero until it learns."""
    last = net[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight[outputs].zero_()
        last.bias[outputs].zero_()
