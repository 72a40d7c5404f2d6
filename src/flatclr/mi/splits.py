"""Which rows train, which stop the training, which give the number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flatclr.mi.arrays import Integers

_VALIDATION = 0.25  # of the rows that are not for evaluation
_EVALUATION = 0.2


@dataclass(frozen=True)
class Split:
    """Disjoint row numbers."""

    train: Integers
    validation: Integers
    evaluation: Integers


def splits(rows: int, seed: int, folds: int = 1) -> Iterator[Split]:
    """One split of 60 / 20 / 20 %, or, for cross-fitting, `folds` splits whose evaluation rows cover all.

    >>> [len(part) for part in vars(next(splits(1000, seed=0))).values()]
    [600, 200, 200]
    """
    order = np.random.default_rng([seed, rows]).permutation(rows)
    parts = np.array_split(order, folds) if folds > 1 else [order[: round(_EVALUATION * rows)]]
    for evaluation in parts:
        rest = np.setdiff1d(order, evaluation, assume_unique=True)
        rest = np.random.default_rng([seed, rows, len(rest)]).permutation(rest)
        cut = round(_VALIDATION * len(rest))
        yield Split(rest[cut:], rest[:cut], evaluation)
