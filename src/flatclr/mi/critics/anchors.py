"""Closed-form log ratios of copulas as critics, and residuals learned on top of them.

Shape suffixes: N rows, K rows of the other block, F features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flatclr.mi.copula import Copula
from flatclr.mi.gaussian import regular
from flatclr.mi.student import student_quantile
from flatclr.models.critics.base import Critic, InnerProduct
from flatclr.models.critics.learned import Joint, Separable


class GaussianAnchor(InnerProduct):
    """The closed-form log ratio of a Gaussian copula of normal scores, without parameters to learn."""

    def __init__(self, copula: Copula) -> None:
        super().__init__()
        ratio = copula.quadratic
        for name in ("cross", "own_x", "own_y", "constant"):
            self.register_buffer(name, torch.as_tensor(getattr(ratio, name), dtype=torch.float32))
        self.cross: Tensor
        self.own_x: Tensor
        self.own_y: Tensor
        self.constant: Tensor

    def features(self, x_Nd: Tensor, y_Kd: Tensor) -> tuple[Tensor, Tensor]:
        a_N = self.constant - ((x_Nd @ self.own_x) * x_Nd).sum(1, keepdim=True) / 2
        b_K = -((y_Kd @ self.own_y) * y_Kd).sum(1, keepdim=True) / 2
        x_NF = torch.cat([x_Nd @ self.cross, a_N, torch.ones_like(a_N)], 1)
        return x_NF, torch.cat([y_Kd, torch.ones_like(b_K), b_K], 1)


class StudentAnchor(Critic):
    """The closed-form log ratio of a Student copula of normal scores, without parameters to learn.

    With q = t^T R^-1 t of the Student quantiles t of x, of y and of both, and L(q, k) = (v + k)/2 log(1 + q / v):
    log r = constant - L(q_xy, d_x + d_y) + L(q_x, d_x) + L(q_y, d_y)
    """

    joint_x: Tensor
    joint_y: Tensor
    cross: Tensor
    own_x: Tensor
    own_y: Tensor

    def __init__(self, copula: Copula) -> None:
        super().__init__()
        correlation = torch.from_numpy(regular(copula.correlation))
        self.df, dim_x, dim = copula.df, copula.dim_x, len(correlation)
        x, y = slice(None, dim_x), slice(dim_x, None)
        precision = correlation.inverse()
        self.register_buffer("joint_x", precision[x, x])
        self.register_buffer("joint_y", precision[y, y])
        self.register_buffer("cross", precision[x, y])
        self.register_buffer("own_x", correlation[x, x].inverse())
        self.register_buffer("own_y", correlation[y, y].inverse())
        log_gamma = {k: math.lgamma((self.df + k) / 2) for k in (0, dim_x, dim - dim_x, dim)}
        log_det = float(correlation.logdet() + self.own_x.logdet() + self.own_y.logdet())
        self.constant = log_gamma[dim] - log_gamma[dim_x] - log_gamma[dim - dim_x] + log_gamma[0] - log_det / 2

    def matrix(self, x_Nd: Tensor, y_Kd: Tensor) -> Tensor:
        t_x, t_y = self._quantiles(x_Nd), self._quantiles(y_Kd)
        joint_NK = _squares(t_x, self.joint_x)[:, None] + _squares(t_y, self.joint_y) + 2 * t_x @ self.cross @ t_y.T
        scores = self._own(t_x, self.own_x)[:, None] + self._own(t_y, self.own_y) - self._tail(joint_NK, t_x, t_y)
        return (self.constant + scores).to(x_Nd.dtype)

    def paired(self, x_Nd: Tensor, y_Nd: Tensor) -> Tensor:
        t_x, t_y = self._quantiles(x_Nd), self._quantiles(y_Nd)
        joint_N = _squares(t_x, self.joint_x) + _squares(t_y, self.joint_y) + 2 * ((t_x @ self.cross) * t_y).sum(1)
        scores = self._own(t_x, self.own_x) + self._own(t_y, self.own_y) - self._tail(joint_N, t_x, t_y)
        return (self.constant + scores).to(x_Nd.dtype)

    def _quantiles(self, z: Tensor) -> Tensor:
        return torch.from_numpy(student_quantile(z.double().cpu().numpy(), self.df)).to(z.device)

    def _own(self, t: Tensor, precision: Tensor) -> Tensor:
        return self._tail(_squares(t, precision), t)

    def _tail(self, squares: Tensor, *variables: Tensor) -> Tensor:
        dim = sum(t.shape[1] for t in variables)
        return (self.df + dim) / 2 * torch.log1p(squares / self.df)


def _squares(t: Tensor, form: Tensor) -> Tensor:
    """t^T form t of every row."""
    return ((t @ form) * t).sum(1)


class Anchored(Critic):
    """A closed-form anchor plus a learned residual that starts at zero."""

    def __init__(self, anchor: Critic, residual: Critic) -> None:
        super().__init__()
        self.anchor, self.residual = anchor, residual
        self.caps_negatives = residual.caps_negatives

    def matrix(self, x_Nd: Tensor, y_Kd: Tensor) -> Tensor:
        return self.anchor.matrix(x_Nd, y_Kd) + self.residual.matrix(x_Nd, y_Kd)

    def paired(self, x_Nd: Tensor, y_Nd: Tensor) -> Tensor:
        return self.anchor.paired(x_Nd, y_Nd) + self.residual.paired(x_Nd, y_Nd)


class AnchoredInner(InnerProduct):
    """An anchor and a residual that are both inner products: so is their sum."""

    def __init__(self, anchor: InnerProduct, residual: InnerProduct) -> None:
        super().__init__()
        self.anchor, self.residual = anchor, residual

    def features(self, x_Nd: Tensor, y_Kd: Tensor) -> tuple[Tensor, Tensor]:
        (a_x, a_y), (r_x, r_y) = self.anchor.features(x_Nd, y_Kd), self.residual.features(x_Nd, y_Kd)
        return torch.cat([a_x, r_x], 1), torch.cat([a_y, r_y], 1)


def anchor_of(copula: Copula) -> Critic:
    return GaussianAnchor(copula) if math.isinf(copula.df) else StudentAnchor(copula)


def anchored(copula: Copula, dim_x: int, dim_y: int, *, hidden: int, joint: bool = False) -> Critic:
    """The copula's log ratio plus a separable, or joint, residual."""
    anchor = anchor_of(copula)
    if joint:
        return Anchored(anchor, Joint(dim_x, dim_y, hidden=hidden, zero_start=True))
    residual = Separable(dim_x, dim_y, hidden=hidden, zero_start=True)
    return AnchoredInner(anchor, residual) if isinstance(anchor, InnerProduct) else Anchored(anchor, residual)
