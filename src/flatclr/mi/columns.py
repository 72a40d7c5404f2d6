"""What is odd about columns: constant, duplicated, tied or discrete ones; and dithering, which undoes ties."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatclr.mi.arrays import Array

_TIED_SHARE = 0.05  # of rows that share their value, above which a column counts as discrete or rounded
_FEW_LEVELS = 50
_ATOM_SHARE = 0.05  # of rows that have one and the same value


@dataclass(frozen=True)
class Inspected:
    """Columns that carry something, and what is odd about them."""

    rows: Array
    tied: bool
    discrete: bool  # tied, and by more than rounding
    warnings: tuple[str, ...]


def inspect(name: str, rows: Array) -> Inspected:
    """Drop constant and duplicated columns, which add no information, and look for ties."""
    warnings = []
    varying = (rows != rows[0]).any(0)  # a standard deviation of many equal numbers need not be 0
    if not varying.all():
        warnings.append(f"{name} has {int((~varying).sum())} constant column(s); they carry no information.")
        rows = rows[:, varying]
    kept = _one_of_each_order(rows)
    if len(kept) < rows.shape[1]:
        warnings.append(f"{name} has {rows.shape[1] - len(kept)} duplicated column(s); they were left out.")
        rows = rows[:, kept]
    tied = sum(is_tied(column) for column in rows.T)
    if tied:
        warnings.append(f"{name} has {tied} discrete or tied column(s); methods for continuous data may misread.")
    return Inspected(rows, tied > 0, any(is_discrete(column) for column in rows.T), tuple(warnings))


def is_tied(column: Array) -> bool:
    """Whether many rows share their value: the column is discrete, or continuous but rounded."""
    return tied_share(column) > _TIED_SHARE


def is_discrete(column: Array) -> bool:
    """Whether a tied column has few levels, or a level that many rows are at, as rounding alone does not make them.

    >>> rows = np.random.default_rng(0).normal(size=2000)
    >>> is_discrete(np.round(rows, 2)), is_discrete(np.round(rows)), is_discrete(np.maximum(rows, 0))
    (False, True, True)
    """
    _, counts = np.unique(column, return_counts=True)
    return is_tied(column) and bool(len(counts) <= _FEW_LEVELS or counts.max() > _ATOM_SHARE * len(column))


def dithered(rows: Array, rng: np.random.Generator) -> Array:
    """Tied columns moved at random towards their next level: no information is lost, as the level can still be read.

    >>> dithered(np.array([[0.0], [0.0], [1.0], [1.0]]), np.random.default_rng(0)).round(1).tolist()
    [[0.6], [0.3], [1.0], [1.0]]
    """
    columns = []
    for column in rows.T:
        levels, numbers = np.unique(column, return_inverse=True)
        gaps = np.diff(levels, append=2 * levels[-1] - levels[-2])
        columns.append(column + is_tied(column) * rng.uniform(size=len(column)) * gaps[numbers])
    return np.stack(columns, axis=1)


def _one_of_each_order(rows: Array) -> list[int]:
    """Columns of which none orders the rows as an earlier one does, or in reverse: those would be monotone copies."""
    seen: dict[bytes, int] = {}
    for column, values in enumerate(rows.T):
        ranks = np.unique(values, return_inverse=True)[1]
        reverse = ranks.max() - ranks
        if ranks.tobytes() not in seen and reverse.tobytes() not in seen:
            seen[ranks.tobytes()] = column
    return list(seen.values())


def tied_share(column: Array) -> float:
    """Share of rows whose value another row has too.

    >>> tied_share(np.array([1.0, 1.0, 2.0, 3.0]))
    0.5
    """
    _, counts = np.unique(column, return_counts=True)
    return float(counts[counts > 1].sum() / len(column))
