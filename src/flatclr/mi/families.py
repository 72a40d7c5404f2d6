"""Copula families as methods: plug-in values, and the bound a family reaches on rows it has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from flatclr.mi.arrays import Array, Integers, as_tensor
from flatclr.mi.copula import Copula
from flatclr.mi.critics import anchor_of
from flatclr.mi.limits import all_pairs
from flatclr.mi.outcome import MethodOptions, Outcome, Reading
from flatclr.mi.variational import InfoNCE


def run_copula(fit_family: Callable[[Array, Array], Copula], x: Array, y: Array, options: MethodOptions) -> Outcome:
    """The plug-in value of a copula family fitted to all rows; there is nothing to choose."""
    return plug_in(fit_family(x, y), x, y)


def plug_in(copula: Copula, x: Array, y: Array) -> Outcome:
    """The plug-in value of a copula that was fitted to these rows, with the error it has where the family is right.

    First order: the spread of the log ratio over sqrt(N). Second order, all there is where x and y share nothing: N
    times the plug-in is then half a chi-square of d_x d_y degrees, whose deviation is sqrt(d_x d_y / 2).
    """
    ratio = replace(copula, correlation=copula.plain_correlation).log_ratio(*copula.scores(x, y))
    return Outcome(
        nats=copula.plug_in_nats,
        rows=len(x),
        influence=ratio,
        negative_pairs=all_pairs(len(x)),
        second_order=math.sqrt(x.shape[1] * y.shape[1] / 2) / len(ratio),
    )


def family_bound(copula: Copula, x: Array, y: Array, rows: Integers) -> Reading:
    """InfoNCE of a fitted copula's log ratio on rows it has not seen: a lower bound whatever the family."""
    z_x, z_y = (as_tensor(z) for z in copula.scores(x[rows], y[rows]))
    return InfoNCE(anchor_of(copula), x.shape[1], y.shape[1], 0).read(z_x, z_y)
