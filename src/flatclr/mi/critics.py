"""Critics: networks that score pairs (x, y), ideally by their log density ratio.

A critic whose score is an inner product of features of x and of y (`InnerProduct`) is streamed by `contrast_stats`; its
additive terms a(x) + b(y) ride along as one more feature each. The others score all pairs of two blocks.

Shape suffixes: N rows, K rows of the other block, F features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from flatclr.checks import require_one_of
from flatclr.mi.copula import Copula, student_quantile
from flatclr.mi.gaussian import regular

CRITICS = ("inner", "bilinear", "separable", "joint", "anchored", "cosine")


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


def make_critic(name: str, dim_x: int, dim_y: int, *, hidden: int, copula: Copula | None = None) -> Critic:
    """A critic by its name; `anchored` needs a fitted copula."""
    require_one_of("critic", name, CRITICS)
    match name:
        case "inner":
            return Inner()
        case "bilinear":
            return Bilinear(dim_x, dim_y)
        case "separable":
            return Separable(dim_x, dim_y, hidden=hidden)
        case "joint":
            return Joint(dim_x, dim_y, hidden=hidden)
        case "cosine":
            return Cosine(dim_x, dim_y, hidden=hidden)
    if copula is None:
        raise ValueError("the anchored critic must have a fitted copula, got None; fit one to the training rows.")
    return anchored(copula, dim_x, dim_y, hidden=hidden)


class WithSquaredNorm(nn.Module):
    """The coordinates, and their mean square: dependence through the norm is common and hard to learn from scratch."""

    def forward(self, rows_Nd: Tensor) -> Tensor:
        return torch.cat([rows_Nd, rows_Nd.square().mean(1, keepdim=True)], 1)


def network(inputs: int, outputs: int, hidden: int) -> nn.Sequential:
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
