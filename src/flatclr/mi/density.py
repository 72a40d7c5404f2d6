"""Bounds that learn the conditional density q(y | x) instead of a critic: BA, CLUB and leave-one-out."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from flatclr.mi import bounds
from flatclr.mi.limits import all_pairs
from flatclr.mi.outcome import Reading
from flatclr.models.critics.networks import network, start_at_zero

_ROWS_AT_ONCE = 1024


class Conditional(nn.Module):
    """q(y | x) = N(x W + b + m(x), diag exp(v(x))): starts as the linear regression of these rows."""

    batch_size = 256

    def __init__(self, x: Tensor, y: Tensor, hidden: int) -> None:
        super().__init__()
        self.dim_y = y.shape[1]
        ones = torch.ones_like(x[:, :1])
        weight = torch.linalg.lstsq(torch.cat([x, ones], 1).double(), y.double(), driver="gelsd").solution.float()
        self.linear = nn.Parameter(weight)
        self.log_variance = nn.Parameter((y - torch.cat([x, ones], 1) @ weight).var(0).clamp_min(1e-6).log())
        self.net = network(x.shape[1], 2 * self.dim_y, hidden)
        start_at_zero(self.net)

    def parameters_of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of y given x."""
        shift, log_factor = self.net(x).chunk(2, 1)
        mean = torch.cat([x, torch.ones_like(x[:, :1])], 1) @ self.linear + shift
        return mean, self.log_variance + 3 * torch.tanh(log_factor / 3)

    def log_density(self, x: Tensor, y: Tensor) -> Tensor:
        """log q(y_i | x_i), [N]."""
        mean, log_variance = self.parameters_of(x)
        terms = (y - mean).square() * (-log_variance).exp() + log_variance + math.log(2 * math.pi)
        return -terms.sum(1) / 2

    def log_density_matrix(self, x: Tensor, y: Tensor) -> Tensor:
        """log q(y_j | x_i), [N, N], from three matrix products."""
        mean, log_variance = (v.double() for v in self.parameters_of(x))
        y = y.double()
        precision = (-log_variance).exp()
        quadratic = precision @ y.square().T - 2 * (precision * mean) @ y.T
        constant = (precision * mean.square() + log_variance + math.log(2 * math.pi)).sum(1, keepdim=True)
        return -(quadratic + constant) / 2

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.log_density(x, y).mean()

    @torch.no_grad()
    def validate(self, x: Tensor, y: Tensor) -> float:
        return float(self.log_density(x, y).mean())

    @torch.no_grad()
    def read(self, method: str, x: Tensor, y: Tensor, entropy_nats: float) -> Reading:
        """The value of "ba", "club" or "l1out" on these rows, the last two in blocks of at most 1,024 rows."""
        if method == "ba":
            values = bounds.ba(self.log_density(x, y).double(), entropy_nats)
            return Reading(values, values, math.inf, all_pairs(len(values)))
        read = _OF_ALL_PAIRS[method]
        blocks = torch.arange(len(x)).chunk(math.ceil(len(x) / _ROWS_AT_ONCE))
        found = [read(self.log_density_matrix(x[rows], y[rows])) for rows in blocks]
        values, influence = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Reading(values, influence, math.inf, sum(all_pairs(len(rows)) for rows in blocks))


def _club(log_q_KK: Tensor) -> tuple[Tensor, Tensor]:
    """Values, and these less what each y does to the other rows' means."""
    values = bounds.club(log_q_KK)
    return values, values - (log_q_KK.sum(0) - log_q_KK.diagonal()) / (len(log_q_KK) - 1)


def _l1out(log_q_KK: Tensor) -> tuple[Tensor, Tensor]:
    """Values, and these less each x's shares in the other rows' mixtures, which average to one."""
    values = bounds.l1out(log_q_KK)
    others = log_q_KK.clone().fill_diagonal_(-torch.inf)
    return values, values - others.softmax(0).sum(1)


_OF_ALL_PAIRS = {"club": _club, "l1out": _l1out}
DENSITY_BOUNDS = ("ba", *_OF_ALL_PAIRS)


def gaussian_entropy_nats(y: Tensor) -> float:
    """Entropy of a Gaussian with these rows' covariance: exact for one normal score, else an upper limit of H(y)."""
    covariance = torch.atleast_2d(torch.cov(y.double().T))
    covariance.diagonal().clamp_(min=1e-6)  # as the learned variances are
    return 0.5 * (y.shape[1] * math.log(2 * math.pi * math.e) + float(covariance.logdet()))
