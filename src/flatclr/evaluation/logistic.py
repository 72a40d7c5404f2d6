"""The solver of logistic regression: losses of logits with a bound on their curvature, and L-BFGS that starts from it.

    minimise  mean_i loss(x_i W, y_i) + l2 / 2 ||W||^2,  the last row of W, the bias, without penalty

Shape suffixes: N samples, d features, D = d + 1 with the constant 1 for the bias, C classes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST_GRADIENT = 5e-5  # scikit-learn's solver stops at 1e-4 on the same scale
MOST_ITERATIONS = 1000
MOST_HALVINGS = 25
MEMORY = 10  # pairs of steps and gradient changes that L-BFGS keeps


class Loss(Protocol):
    """A loss of logits, and a number that bounds its curvature whatever the logits."""

    @property
    def curvature(self) -> float: ...
    def __call__(self, logits_NC: Tensor) -> tuple[float, Callable[[], Tensor]]:
        """(mean over samples, what computes the derivative of each sample's loss [N, C])"""


@dataclass(frozen=True)
class Multinomial:
    """Cross-entropy of class numbers; its Hessian is at most (I - 11'/C) / 2 (Böhning 1992)."""

    labels: Tensor
    curvature: float = 0.5

    def __call__(self, logits_NC: Tensor) -> tuple[float, Callable[[], Tensor]]:
        own_N1 = self.labels.unsqueeze(1)
        log_p_NC = logits_NC.log_softmax(1)
        value = -log_p_NC.gather(1, own_N1).sum(dtype=torch.float64).item() / len(own_N1)
        return value, lambda: log_p_NC.exp().scatter_add_(1, own_N1, -torch.ones_like(log_p_NC[:, :1]))


@dataclass(frozen=True)
class OneAgainstRest:
    """Binary cross-entropy of every class on its own, summed, for samples of several classes."""

    targets_NC: Tensor
    curvature: float = 0.25

    def __call__(self, logits_NC: Tensor) -> tuple[float, Callable[[], Tensor]]:
        wanted = self.targets_NC.to(logits_NC.dtype)
        losses_NC = F.softplus(logits_NC) - wanted * logits_NC
        return losses_NC.sum(dtype=torch.float64).item() / len(wanted), lambda: logits_NC.sigmoid() - wanted


def loss_of(labels: Tensor) -> Loss:
    """By shape: class numbers [N], or a yes or no for every class [N, C]."""
    return Multinomial(labels) if labels.dim() == 1 else OneAgainstRest(labels)


@dataclass(frozen=True)
class Fit:
    """Where the solver ended."""

    weights_DC: Tensor
    iterations: int
    converged: bool


@dataclass(frozen=True)
class Problem:
    """L-BFGS whose first guess of the curvature is its bound, X'X times that of the loss.

    The bound removes what correlated features do to the condition; what is left takes few iterations. Logits are linear
    in the weights, so a line search costs no pass over the features.
    """

    x_ND: Tensor
    loss: Loss
    gram_DD: Tensor  # X'X / N

    @classmethod
    def of(cls, x_ND: Tensor, loss: Loss) -> Problem:
        """Of features with a last column of ones."""
        return cls(x_ND, loss, x_ND.T @ x_ND / len(x_ND))

    def start(self, classes: int) -> Tensor:
        """Weights of zero."""
        return self.x_ND.new_zeros(self.x_ND.shape[1], classes)

    def solve(self, l2: float, weights_DC: Tensor) -> Fit:
        """The minimum at one strength, looked for from these weights on."""
        penalty_D1 = torch.full_like(weights_DC[:, :1], l2)
        penalty_D1[-1] = 0  # the bias
        bound_DD = self.loss.curvature * self.gram_DD + penalty_D1.squeeze(1).diag()
        bound_DD.diagonal().add_(1e-6 * bound_DD.diagonal().mean())
        factor_DD = torch.linalg.cholesky(bound_DD)
        logits_NC = self.x_ND @ weights_DC
        value, residual = self.loss(logits_NC)
        gradient_DC = self._gradient(residual, penalty_D1 * weights_DC)
        steps: deque[tuple[Tensor, Tensor]] = deque(maxlen=MEMORY)
        for iteration in range(MOST_ITERATIONS):
            if gradient_DC.abs().max() <= LARGEST_GRADIENT:
                return Fit(weights_DC, iteration, True)
            direction_DC = -_two_loop(gradient_DC, steps, factor_DD)
            change_NC = self.x_ND @ direction_DC
            # the penalty along the line is size * linear + size^2 * square / 2
            linear, square, slope = torch.stack(
                [
                    (penalty_D1 * weights_DC * direction_DC).sum(),
                    (penalty_D1 * direction_DC.square()).sum(),
                    (gradient_DC * direction_DC).sum(),
                ]
            ).tolist()
            size, before = 1.0, value
            for _ in range(MOST_HALVINGS):
                tried_NC = logits_NC + size * change_NC
                value, residual = self.loss(tried_NC)
                rise = value - before + size * linear + size**2 * square / 2
                if rise <= 1e-4 * size * slope + _rounding(before, logits_NC.dtype):
                    break
                size /= 2
            else:  # no descent is left in this precision
                return Fit(weights_DC, iteration, False)
            weights_DC, logits_NC = weights_DC + size * direction_DC, tried_NC
            if iteration % 20 == 19:
                logits_NC = self.x_ND @ weights_DC  # sheds the rounding of the updates
            after_DC = self._gradient(residual, penalty_D1 * weights_DC)
            steps.append((size * direction_DC, after_DC - gradient_DC))
            gradient_DC = after_DC
        return Fit(weights_DC, MOST_ITERATIONS, False)

    def _gradient(self, residual: Callable[[], Tensor], penalty_DC: Tensor) -> Tensor:
        # in this order the product reads the features row by row: a third of the time of X'R
        return (residual().T @ self.x_ND).T / len(self.x_ND) + penalty_DC


def _rounding(value: float, kind: torch.dtype) -> float:
    return 4 * torch.finfo(kind).eps * abs(value)


def _two_loop(gradient_DC: Tensor, steps: deque[tuple[Tensor, Tensor]], factor_DD: Tensor) -> Tensor:
    """Inverse Hessian times gradient (Nocedal & Wright 2006, algorithm 7.4), the first guess being the bound."""
    out, weights = gradient_DC, []
    for step, change in reversed(steps):
        rho = 1 / (step * change).sum()
        alpha = rho * (step * out).sum()
        out = out - alpha * change
        weights.append((rho, alpha))
    out = torch.cholesky_solve(out, factor_DD)
    if steps:  # the bound is far above the curvature where the classes are told apart well
        step, change = steps[-1]
        out = out * (step * change).sum() / (change * torch.cholesky_solve(change, factor_DD)).sum()
    for (step, change), (rho, alpha) in zip(steps, reversed(weights), strict=True):
        out = out + step * (alpha - rho * (change * out).sum())
    return out
