"""Critics: networks that score pairs (x, y), ideally by their log density ratio.

A critic whose score is an inner product of features of x and of y (`InnerProduct`) is streamed by `contrast_stats`; its
additive terms a(x) + b(y) ride along as one more feature each. The others score all pairs of two blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from flatclr.checks import require_one_of
from flatclr.mi.copula import Copula
from flatclr.mi.critics.anchors import anchor_of, anchored
from flatclr.models.critics import Bilinear, Cosine, Critic, Inner, InnerProduct, Joint, Separable

_Make = Callable[[int, int, int, Copula | None], Critic]  # (dim_x, dim_y, hidden, copula)


def _anchored(dim_x: int, dim_y: int, hidden: int, copula: Copula | None) -> Critic:
    if copula is None:
        raise ValueError("the anchored critic must have a fitted copula, got None; fit one to the training rows.")
    return anchored(copula, dim_x, dim_y, hidden=hidden)


_MAKE: dict[str, _Make] = {
    "inner": lambda dim_x, dim_y, hidden, copula: Inner(),
    "bilinear": lambda dim_x, dim_y, hidden, copula: Bilinear(dim_x, dim_y),
    "separable": lambda dim_x, dim_y, hidden, copula: Separable(dim_x, dim_y, hidden=hidden),
    "joint": lambda dim_x, dim_y, hidden, copula: Joint(dim_x, dim_y, hidden=hidden),
    "anchored": _anchored,
    "cosine": lambda dim_x, dim_y, hidden, copula: Cosine(dim_x, dim_y, hidden=hidden),
}

CRITICS = tuple(_MAKE)
"""Names of critics that `flatclr.mi.estimate(..., critic=)` knows.

`inner`: x^T y. `bilinear`: x^T W y. `separable`: <g(x), h(y)> + a(x) + b(y). `joint`: a network of [x, y]. `anchored`:
a Gaussian copula's log ratio plus a separable residual, the default. `cosine`: scaled cosine of g(x) and h(y), bounded.
"""


def make_critic(name: str, dim_x: int, dim_y: int, *, hidden: int, copula: Copula | None = None) -> Critic:
    """A critic by its name; `anchored` needs a fitted copula."""
    require_one_of("critic", name, CRITICS)
    return _MAKE[name](dim_x, dim_y, hidden, copula)


__all__ = [
    "CRITICS",
    "Bilinear",
    "Cosine",
    "Critic",
    "Inner",
    "InnerProduct",
    "Joint",
    "Separable",
    "anchor_of",
    "anchored",
    "make_critic",
]
