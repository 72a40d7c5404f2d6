"""Nearest-neighbour estimators as methods: on normal scores, each with the most it can say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flatclr.mi import ksg
from flatclr.mi.arrays import Array
from flatclr.mi.limits import all_pairs
from flatclr.mi.margins import RankNormal
from flatclr.mi.outcome import MethodOptions, Outcome

NEIGHBOUR_COLUMNS = 10  # of both variables together; in more, neighbours are too far to tell anything


@dataclass(frozen=True)
class NeighbourEstimator:
    """One term per row, and the largest mean they can have."""

    terms: Callable[[Array, Array, int], Array]  # (x, y, k)
    ceiling_nats: Callable[[int, int], float]  # (rows, k)


KSG_1 = NeighbourEstimator(ksg.ksg_1, ksg.ksg_1_ceiling_nats)
KSG_2 = NeighbourEstimator(ksg.ksg_2, ksg.ksg_2_ceiling_nats)
MIXED_KSG = NeighbourEstimator(ksg.mixed_ksg, ksg.mixed_ksg_ceiling_nats)


def run_neighbours(estimator: NeighbourEstimator, x: Array, y: Array, options: MethodOptions) -> Outcome:
    """The estimator's mean on normal scores; information is never negative, so neither is this."""
    terms = estimator.terms(RankNormal.fit(x)(x), RankNormal.fit(y)(y), options.k)
    return Outcome(
        nats=max(float(terms.mean()), 0.0),
        rows=len(x),
        influence=terms,
        negative_pairs=all_pairs(len(x)),
        rows_interact=True,
        ceiling_nats=estimator.ceiling_nats(len(x), options.k),
    )
