"""Tables with tied columns: levels that many rows share are told apart, the others are dithered."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flatclr.mi.arrays import Array, Integers, level_numbers
from flatclr.mi.columns import dithered, is_tied
from flatclr.mi.ksg import same_level_ksg
from flatclr.mi.limits import all_pairs
from flatclr.mi.margins import RankNormal
from flatclr.mi.outcome import MethodOptions, Outcome

_ROWS_PER_LEVEL = 5
ROWS_PER_PLACE = 10  # where levels of both variables meet; with fewer, counts read high
_FEWEST_ROWS = 2  # where nothing else can be meant: of one-hot codes, and of levels that determine each other
_BLUR_NATS = 0.5  # of a level that is determined: a triangle two levels wide instead of a box of one
_BLUR_RATE = 2.6  # at noise of one level's deviation, 1.46 nats below the entropy of the levels, 1/24 nat is left of it
_DITHER = 0xD17  # keeps the noise from repeating draws of a user who made the rows with the same seed


@dataclass(frozen=True)
class Tied:
    """How columns are read; they are numbered through x and y."""

    apart: tuple[int, ...]  # levels are only equal or not
    ordered: tuple[int, ...]  # too many levels for the rows: near ones stand in for equal ones
    continuous: tuple[int, ...]
    places: int  # of the columns apart

    @property
    def width(self) -> int:
        """Dimensions that neighbours are sought in; all levels apart are one."""
        return bool(self.apart) + len(self.ordered) + len(self.continuous)

    @property
    def warnings(self) -> tuple[str, ...]:
        if not self.ordered:
            return ()
        return (
            f"{len(self.ordered)} tied column(s) have too many levels for the rows and were taken as ordered; one-hot "
            "encode codes that have no order.",
        )


def sort_columns(x: Array, y: Array) -> Tied:
    """Tell levels apart, of the columns with the fewest first, while places keep enough rows.

    >>> rng = np.random.default_rng(0)
    >>> sex, city, age = rng.integers([[2], [50], [90]], size=(3, 2000))
    >>> sort_columns(np.stack([sex, rng.normal(size=2000)], 1), np.stack([age, city], 1))
    Tied(apart=(0, 3), ordered=(2,), continuous=(1,), places=100)
    """
    columns = [*x.T, *y.T]
    numbers = {i: level_numbers(column) for i, column in enumerate(columns) if is_tied(column)}
    pairs = _one_to_one(x, y) if len(numbers) == len(columns) else 0
    if 0 < pairs * _FEWEST_ROWS <= len(x):
        return Tied(tuple(numbers), (), (), pairs)
    place, places, apart = np.zeros(len(x), np.intp), 1, list[int]()
    for i in sorted(numbers, key=lambda i: numbers[i].max()):
        finer = level_numbers(place * (numbers[i].max() + 1) + numbers[i])
        found = int(finer.max()) + 1
        both = any((j < x.shape[1]) != (i < x.shape[1]) for j in apart)
        needed = ROWS_PER_PLACE if both else _ROWS_PER_LEVEL
        if found <= places + 1:  # as a column of a one-hot code splits off its own level only
            needed = _FEWEST_ROWS
        if found * needed <= len(x):
            place, places = finer, found
            apart.append(i)
    ordered = tuple(i for i in numbers if i not in apart)
    continuous = tuple(i for i in range(len(columns)) if i not in numbers)
    return Tied(tuple(sorted(apart)), ordered, continuous, places)


def run_levels(x: Array, y: Array, options: MethodOptions) -> Outcome:
    """Neighbours among rows of the same levels, on normal scores of the other columns; without any, counts."""
    tied, rng = sort_columns(x, y), dither_rng(options.seed)
    parts = []
    for variable, first in ((x, 0), (y, x.shape[1])):
        apart = [i - first for i in tied.apart if 0 <= i - first < variable.shape[1]]
        rest = np.delete(variable, apart, axis=1)
        parts.append((_scores(rest, rng), level_numbers(variable[:, apart])))
    (x_scores, x_levels), (y_scores, y_levels) = parts
    if x_scores.shape[1] + y_scores.shape[1] == 0:
        terms = count_terms(x_levels, y_levels)
        second_order = math.sqrt((tied.places - 1) / 2) / len(x)  # of a chi-square, where all rows have one surprise
    else:
        terms, second_order = same_level_ksg(x_scores, y_scores, x_levels, y_levels, options.k), 0.0
    return Outcome(
        nats=max(float(terms.mean()), 0.0),
        rows=len(x),
        influence=terms,
        negative_pairs=all_pairs(len(x)),
        second_order=second_order,
        rows_interact=True,
        warnings=tied.warnings,
    )


def count_terms(x_levels: Integers, y_levels: Integers) -> Array:
    """G(n_xy) + ln N - G(n_x) - G(n_y) of each row, n counting the rows of its levels, with it.

    G(n) = psi(n) + (-1)^n [psi((n + 1)/2) - psi(n/2)]/2 undoes most of what log n errs by (Grassberger 2003).

    >>> label = np.repeat([0, 1, 2, 3], 250)  # ln 4 = 1.39
    >>> count_terms(label, label).mean().round(2)
    np.float64(1.39)
    """
    both = level_numbers(np.stack([x_levels, y_levels], 1))
    terms: Array = _log_count(both) + np.log(len(both)) - _log_count(x_levels) - _log_count(y_levels)
    return terms


def _log_count(levels: Integers) -> Array:
    from scipy.special import digamma

    n = np.bincount(levels)[levels]
    value: Array = digamma(n) + (1 - 2 * (n % 2)) * (digamma((n + 1) / 2) - digamma(n / 2)) / 2
    return value


def blurred_nats(x: Array, y: Array, nats: float) -> float:
    """What densities of dithered columns miss if they read `nats`, because they are too smooth for the steps of levels.

    Where one variable determines the levels of the other, a level is a step of a staircase. Without its steps the
    dithered column lies within a triangle around a line, not within a box: half a nat less for each column. How far
    the reading is below the entropy of the levels tells how near a variable is to that.

    >>> u = np.random.default_rng(0).uniform(size=(5000, 1))
    >>> [round(blurred_nats(u, np.floor(50 * u), nats), 2) for nats in (3.4, 2.5)]  # of ln 50 = 3.91
    [0.48, 0.05]
    >>> blurred_nats(u, u + np.floor(50 * u), 3.4)  # nothing is tied
    0.0
    """
    missed = [0.0]
    for rows in (x, y):
        if all(is_tied(column) for column in rows.T):
            entropy_nats = sum(np.log(len(rows)) - float(_log_count(level_numbers(c)).mean()) for c in rows.T)
            below = max((entropy_nats - nats) / rows.shape[1] - _BLUR_NATS, 0.0)
            missed.append(rows.shape[1] * _BLUR_NATS * math.exp(-_BLUR_RATE * below))
    return max(missed)


def dither_rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, _DITHER])


def _one_to_one(x: Array, y: Array) -> int:
    """How many places there are if each level of x goes with one of y and the reverse, else 0."""
    places, x_places, y_places = (int(level_numbers(rows).max()) + 1 for rows in (np.hstack([x, y]), x, y))
    return places if places == x_places == y_places else 0


def _scores(rows: Array, rng: np.random.Generator) -> Array:
    if rows.shape[1] == 0:
        return rows
    moved = dithered(rows, rng)
    return RankNormal.fit(moved)(moved)
