"""Copula families as methods: plug-in values, and the bound a family reaches on rows it has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from flatclr.mi.arrays import Array, Integers, as_tensor
from flatclr.mi.copula import Copula, fit_spiral, refitted
from flatclr.mi.critics import anchor_of
from flatclr.mi.gaussian import plug_in_deviation_nats
from flatclr.mi.limits import all_pairs
from flatclr.mi.outcome import MethodOptions, Outcome, Reading
from flatclr.mi.variational import InfoNCE

_SMOOTHED = 0.25  # of what smooth margins add: a pair of 10 nats reads 8.4 by ranks and 9.7 by them
_LEAST_GAP = 0.01  # nats


def run_copula(fit_family: Callable[[Array, Array], Copula], x: Array, y: Array, options: MethodOptions) -> Outcome:
    """The plug-in value of a copula family fitted to all rows; there is nothing to choose."""
    return plug_in(fit_family(x, y), x, y)


def run_spiral(x: Array, y: Array, options: MethodOptions) -> Outcome:
    """Turns are sought on one half of the rows and read on the other: where they were found the best looks too good."""
    order = np.random.default_rng([options.seed, len(x)]).permutation(len(x))
    sought, read = np.array_split(order, 2)
    found = fit_spiral(x[sought], y[sought])
    if not (found.spirals.x or found.spirals.y):
        read = order
    return plug_in(refitted(found, x[read], y[read]), x[read], y[read])


def plug_in(copula: Copula, x: Array, y: Array) -> Outcome:
    """The plug-in value of a copula that was fitted to these rows, with the error it has where the family is right.

    First order: the spread of the log ratio over sqrt(N - d), d the columns, whose correlations the same rows gave.
    Second order, all there is where x and y share nothing: that of Wilks' ratio; and where dependence is strong, a part
    of what smooth margins made of it. With fewer rows than columns the value has no error that these rows could give.
    """
    dim_x, dim_y, rows = x.shape[1], y.shape[1], len(x)
    ratio = replace(copula, correlation=copula.plain_correlation).log_ratio(*copula.scores(x, y))
    if not copula.determined:
        told = f"{rows} rows do not determine the correlations of {dim_x} + {dim_y} columns; the value has no error."
        return Outcome(copula.plug_in_nats, rows, ratio, all_pairs(rows), second_order=math.inf, warnings=(told,))
    freedom = rows - dim_x - dim_y - 1
    return Outcome(
        nats=copula.plug_in_nats,
        rows=rows,
        influence=ratio * math.sqrt(rows / freedom),
        negative_pairs=all_pairs(rows),
        second_order=math.hypot(plug_in_deviation_nats(rows, dim_x, dim_y), _SMOOTHED * copula.smoothing_nats),
    )


def family_bound(copula: Copula, x: Array, y: Array, rows: Integers) -> Reading:
    """InfoNCE of a fitted copula's log ratio on rows it has not seen: a lower bound whatever the family."""
    z_x, z_y = (as_tensor(z) for z in copula.scores(x[rows], y[rows]))
    return InfoNCE(anchor_of(copula), x.shape[1], y.shape[1], 0).read(z_x, z_y)


def refutes(reading: Reading, copula: Copula, rng: np.random.Generator) -> bool:
    """Whether a family's bound on held-out rows is clearly below what it reads on as many rows of its own.

    Both are capped by the logarithm of the rows, so that a cap refutes nothing. The family's own rows are drawn from
    the correlations that were fitted, which overstate the information, and held-out rows pay for their errors.
    """
    simulated = InfoNCE(anchor_of(copula), copula.dim_x, copula.dim_y, 0).read(
        *(as_tensor(z) for z in copula.draw(len(reading.values), rng))
    )
    cost = copula.dim_x * copula.dim_y / (2 * max(copula.rows - copula.dim_x - copula.dim_y, 1))
    spread = math.hypot(reading.standard_error, simulated.standard_error)
    return simulated.nats - reading.nats > 3 * cost + 3 * spread + _LEAST_GAP
