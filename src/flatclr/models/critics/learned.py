"""Critics that are learned from scratch.

Shape suffixes: N rows, K rows of the other block, F features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from flatclr.models.critics.base import Critic, InnerProduct
from flatclr.models.critics.networks import network, start_at_zero


class Inner(InnerProduct):
    """x^T y, without parameters."""

    def features(self, x_Nd: Tensor, y_Kd: Tensor) -> tuple[Tensor, Tensor]:
        if x_Nd.shape[1] != y_Kd.shape[1]:
            raise ValueError(
                f"the inner critic must have x and y of one width, got {x_Nd.shape[1]} and {y_Kd.shape[1]}; "
                "use 'bilinear'."
            )
        return x_Nd, y_Kd


class Bilinear(InnerProduct):
    """x^T W y, W = 0 at the start; it cannot follow the y^2 of even a Gaussian's log ratio."""

    def __init__(self, dim_x: int, dim_y: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim_x, dim_y))

    def features(self, x_Nd: Tensor, y_Kd: Tensor) -> tuple[Tensor, Tensor]:
        return x_Nd @ self.weight, y_Kd


class Separable(InnerProduct):
    """<g(x), h(y)> + a(x) + b(y), networks of the coordinates and of their squared norm."""

    def __init__(self, dim_x: int, dim_y: int, *, hidden: int, features: int = 32, zero_start: bool = False) -> None:
        super().__init__()
        self.g, self.h = network(dim_x, features + 1, hidden), network(dim_y, features + 1, hidden)
        self.scale = 1 / math.sqrt(features)
        if zero_start:
            start_at_zero(self.g)
            start_at_zero(self.h, slice(-1, None))  # b(y); the rest stays random, so that g has a gradient

    def features(self, x_Nd: Tensor, y_Kd: Tensor) -> tuple[Tensor, Tensor]:
        g, h = self.g(x_Nd), self.h(y_Kd)
        one_x, one_y = torch.ones_like(g[:, :1]), torch.ones_like(h[:, :1])
        x_NF = torch.cat([g[:, :-1] * self.scale, g[:, -1:], one_x], 1)
        return x_NF, torch.cat([h[:, :-1], one_y, h[:, -1:]], 1)


class Cosine(InnerProduct):
    """scale * cos(g(x), h(y)), bounded whatever the networks do; the scale is set by hand, not learned."""

    def __init__(self, dim_x: int, dim_y: int, *, hidden: int, features: int = 32, scale: float = 10.0) -> None:
        super().__init__()
        self.g, self.h = network(dim_x, features, hidden), network(dim_y, features, hidden)
        self.register_buffer("scale", torch.tensor(scale))
        self.scale: Tensor

    def features(self, x_Nd: Tensor, y_Kd: Tensor) -> tuple[Tensor, Tensor]:
        unit = nn.functional.normalize
        return unit(self.g(x_Nd), dim=1) * self.scale, unit(self.h(y_Kd), dim=1)


class Joint(Critic):
    """A network of [x, y]: the most flexible, at the price of a pass per pair."""

    caps_negatives = True

    def __init__(self, dim_x: int, dim_y: int, *, hidden: int, zero_start: bool = False) -> None:
        super().__init__()
        self.net = network(dim_x + dim_y, 1, hidden)
        if zero_start:
            start_at_zero(self.net)

    def matrix(self, x_Nd: Tensor, y_Kd: Tensor) -> Tensor:
        N, K = len(x_Nd), len(y_Kd)
        pairs = torch.cat([x_Nd.repeat_interleave(K, 0), y_Kd.repeat(N, 1)], 1)
        scores: Tensor = self.net(pairs).view(N, K)
        return scores

    def paired(self, x_Nd: Tensor, y_Nd: Tensor) -> Tensor:
        scores: Tensor = self.net(torch.cat([x_Nd, y_Nd], 1)).squeeze(1)
        return scores
