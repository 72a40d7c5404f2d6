"""What more rows would still add: a reading that rises with the rows is carried on by what the last of them gained."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flatclr.mi.arrays import Integers

PARTS = 4  # of the rows, one of which a curve is read from beside all
_FEWEST_ROWS = 50  # of a part
_LARGEST_SHARE = 0.25  # of the value, by which it is carried on at most
_UNMEASURED = 0.1  # of the value, by which it may be low where no curve was measured


@dataclass(frozen=True)
class LearningCurve:
    """A reading, and what three fourths of its rows added to it.

    Args:
        nats: from all rows.
        gain_nats: how far this is above the reading from a fourth of them; None where that was not measured.

    >>> curve = LearningCurve(nats=0.8, gain_nats=0.1)
    >>> curve.carried_on_nats, curve.systematic_error
    (0.1, 0.05)
    >>> LearningCurve(nats=2.0, gain_nats=None).systematic_error
    0.2
    """

    nats: float
    gain_nats: float | None

    @property
    def carried_on_nats(self) -> float:
        """What is still to gain, if the distance from the truth falls like one over the root of the rows.

        Then it halves with four times the rows, so that what is left is what they gained; but no more than a fourth of
        the value, as a fourth of few rows may have taught nothing at all.
        """
        return min(max(self.gain_nats or 0.0, 0.0), _LARGEST_SHARE * max(self.nats, 0.0))

    @property
    def systematic_error(self) -> float:
        """Half of what the last three fourths of the rows gained; a tenth of the value where nobody knows."""
        if self.gain_nats is None:
            return _UNMEASURED * max(self.nats, 0.0)
        return max(self.gain_nats, 0.0) / 2


def quarters(rows: int, seed: int) -> list[Integers]:
    """Row numbers in four random parts; none where these are too small to read from.

    >>> [len(part) for part in quarters(1000, seed=0)], quarters(100, seed=0)
    ([250, 250, 250, 250], [])
    """
    return random_parts(rows, PARTS, seed) if rows >= PARTS * _FEWEST_ROWS else []


def random_parts(rows: int, count: int, seed: int) -> list[Integers]:
    """Row numbers in so many disjoint random parts."""
    return np.array_split(np.random.default_rng([seed, rows]).permutation(rows), count)


def first_quarter(rows: Integers) -> Integers:
    """A fourth of rows that are in random order already."""
    return rows[: len(rows) // PARTS]


def subsampled_error(readings: list[float]) -> float:
    """The standard error of a reading of all rows, from readings of disjoint parts: their variances go like 1 / rows.

    Reference: Holmes & Nemenman 2019.

    >>> round(subsampled_error([1.0, 1.2, 0.8, 1.0]), 4)
    0.0816
    """
    return float(np.std(readings, ddof=1)) / math.sqrt(len(readings))
