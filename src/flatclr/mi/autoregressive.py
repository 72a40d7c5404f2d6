"""A density of several columns, perhaps given others: one column after another, each a mixture of normals.

Its distribution functions, one after another, carry rows to the uniform cube, so it is an autoregressive flow. It
starts at the linear regression of each column on those before it, which is fitted in float64: where x all but
determines y, float32 has not the digits.

Shape suffixes: N rows, d columns, K components.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatclr.mi.arrays import Array, as_tensor

COMPONENTS = 8
_SPREAD = 1.2  # of the first means, in residual deviations
_LOG_SCALES = (-7.0, 3.0)
_LEAST_DEVIATION = 1e-9
ROWS_PER_INPUT = 2  # of a regression; fewer would be fitted so closely that other rows lie billions of deviations off


@dataclass(frozen=True)
class Regression:
    """Each column of y by a linear map of x and of the columns of y before it: a triangular map to its residuals.

    Where the rows are fewer than twice those columns, by its mean alone.
    """

    weights: tuple[Array, ...]  # of x, the columns before and 1, for each column
    deviations: Array

    @classmethod
    def fit(cls, x: Array, y: Array) -> Regression:
        weights, deviations = [], []
        for i in range(y.shape[1]):
            before = _before(x, y, i)
            weight = np.zeros(before.shape[1])
            used = slice(-1, None) if len(y) < ROWS_PER_INPUT * before.shape[1] else slice(None)  # the mean, or all
            weight[used] = np.linalg.lstsq(before[:, used], y[:, i], rcond=None)[0]
            weights.append(weight)
            deviations.append(max(float((y[:, i] - before @ weight).std()), _LEAST_DEVIATION))
        return cls(tuple(weights), np.array(deviations))

    def residuals(self, x: Array, y: Array) -> Array:
        """[N, d_y], of unit deviation on the rows that were fitted."""
        columns = [y[:, i] - _before(x, y, i) @ weight for i, weight in enumerate(self.weights)]
        scaled: Array = np.stack(columns, axis=1) / self.deviations
        return scaled

    @property
    def log_volume(self) -> float:
        """log |det| of the map from y to its residuals."""
        return -float(np.log(self.deviations).sum())


def _before(x: Array, y: Array, i: int) -> Array:
    return np.column_stack([x, y[:, :i], np.ones(len(y))])


class Masked(nn.Linear):
    """A linear layer some of whose weights are always zero."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.weight * self.mask, self.bias)


class MixtureNetwork(nn.Module):
    """Weights, means and scales of the mixture of each column's residual, from x and the columns of y before it.

    Args:
        dim_x: columns that every mixture may depend on; 0 for a density that is given nothing.
        dim_y: columns that have a density.
        hidden: width of the two hidden layers.

    Reference: Germain et al. 2015 (masks), Bishop 1994 (mixtures).
    """

    batch_size = 256

    def __init__(self, dim_x: int, dim_y: int, hidden: int) -> None:
        super().__init__()
        self.dim_y = dim_y
        inputs = torch.cat([torch.zeros(dim_x), torch.arange(1, dim_y + 1)])  # which column an entry belongs to
        units = (torch.arange(hidden) % dim_y).float()  # the last column a unit may look at
        outputs = torch.arange(1, dim_y + 1).repeat_interleave(3 * COMPONENTS)
        self.first = Masked((units[:, None] >= inputs).float())
        self.second = Masked((units[:, None] >= units).float())
        self.last = Masked((outputs[:, None] > units).float())
        with torch.no_grad():
            self.last.weight.mul_(0.1)
            start = self.last.bias.zero_().view(dim_y, COMPONENTS, 3)
            start[..., 1] = torch.linspace(-_SPREAD, _SPREAD, COMPONENTS)
            start[..., 2] = 0.5 * math.log(1 - _SPREAD**2 / 3)

    def log_density(self, inputs: Tensor, residuals: Tensor) -> Tensor:
        """log q of each row's residuals, [N]; inputs are x and y side by side."""
        hidden = F.silu(self.first(inputs))
        hidden = hidden + F.silu(self.second(hidden))
        log_weight, mean, log_scale = self.last(hidden).view(-1, self.dim_y, COMPONENTS, 3).unbind(-1)
        log_scale = log_scale.clamp(*_LOG_SCALES)
        standard = (residuals.unsqueeze(-1) - mean) * torch.exp(-log_scale)
        log_terms = log_weight.log_softmax(-1) - standard.square() / 2 - log_scale
        log_density: Tensor = log_terms.logsumexp(-1).sum(1) - self.dim_y / 2 * math.log(2 * math.pi)
        return log_density

    def loss(self, inputs: Tensor, residuals: Tensor) -> Tensor:
        return -self.log_density(inputs, residuals).mean()

    @torch.no_grad()
    def validate(self, inputs: Tensor, residuals: Tensor) -> float:
        return float(self.log_density(inputs, residuals).mean())


@dataclass(frozen=True)
class Density:
    """q(y | x): the regression, and the network of its residuals."""

    regression: Regression
    network: MixtureNetwork

    def tensors(self, x: Array, y: Array) -> tuple[Tensor, Tensor]:
        """What the network is given."""
        return as_tensor(np.hstack([x, y])), as_tensor(self.regression.residuals(x, y))

    @torch.no_grad()
    def log_density(self, x: Array, y: Array) -> Tensor:
        """log q(y_i | x_i), [N] in float64."""
        return self.network.log_density(*self.tensors(x, y)).double() + self.regression.log_volume
