"""What a critic is: scores of pairs (x, y).

Shape suffixes: N rows, K rows of the other block, F features.
"""

from __future__ import annotations

from torch import Tensor, nn


class Critic(nn.Module):
    """Scores of pairs."""

    caps_negatives = False  # True: a pair costs a pass of the network, so that not all pairs can be scored

    def matrix(self, x_Nd: Tensor, y_Kd: Tensor) -> Tensor:
        """f(x_i, y_j), [N, K]."""
        raise NotImplementedError

    def paired(self, x_Nd: Tensor, y_Nd: Tensor) -> Tensor:
        """f(x_i, y_i), [N]."""
        raise NotImplementedError

    def forward(self, x_Nd: Tensor, y_Kd: Tensor) -> Tensor:
        return self.matrix(x_Nd, y_Kd)


class InnerProduct(Critic):
    """f(x, y) = <features of x, features of y>."""

    def features(self, x_Nd: Tensor, y_Kd: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def matrix(self, x_Nd: Tensor, y_Kd: Tensor) -> Tensor:
        x_NF, y_KF = self.features(x_Nd, y_Kd)
        return x_NF @ y_KF.T

    def paired(self, x_Nd: Tensor, y_Nd: Tensor) -> Tensor:
        x_NF, y_NF = self.features(x_Nd, y_Nd)
        return (x_NF * y_NF).sum(1)
