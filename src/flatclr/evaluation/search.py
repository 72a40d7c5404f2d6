"""Neighbours, near-duplicates and outliers among features, by cosine: exact, in blocks, with faiss where it is there.

Shape suffixes: M features of the bank, N queries, d their width, k neighbours.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flatclr.checks import require_count, require_number, require_one_of, shown

ENTRIES_AT_ONCE = 2**24  # similarities that are held at once
MOST_PAIRS = 1_000_000
BACKENDS = ("auto", "numpy", "faiss")
Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Nearest:
    """The nearest of the bank, nearest first.

    Args:
        index: their numbers [N, k].
        cosine: their similarity [N, k].
    """

    index: Integers
    cosine: Floats


class Pair(NamedTuple):
    """Two images that are nearly the same.

    Args:
        first, second: their numbers.
        cosine: of their features.
    """

    first: int
    second: int
    cosine: float


def unit(features: NDArray[np.floating]) -> Floats:
    """Rows of length 1; a row of zeros stays one."""
    if not isinstance(features, np.ndarray) or features.ndim != 2 or features.dtype.kind not in "fiub":
        raise ValueError(f"features must be an array of numbers [N, d], got {shown(features)}; stack one row for each.")
    if not features.size:
        raise ValueError(f"features must not be empty, got shape {list(features.shape)}; pass at least one row.")
    rows = np.asarray(features, np.float32)
    if not np.isfinite(rows).all():
        bad = ~np.isfinite(rows).all(1)
        raise ValueError(
            f"features must be finite, got NaN or Inf in {bad.sum()} of {len(rows)} rows, first in row "
            f"{bad.argmax()}; leave those out."
        )
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def nearest(
    bank: NDArray[np.floating], queries: NDArray[np.floating] | None = None, *, k: int = 10, backend: str = "auto"
) -> Nearest:
    """The k rows of the bank nearest to each query by cosine; all of them are compared.

    Args:
        bank: [M, d].
        queries: [N, d]; None: every row of the bank, which does not find itself.
        k: how many; all of a smaller bank.
        backend: "numpy", "faiss", or "auto", which takes faiss where it is installed.

    Returns:
        Numbers and cosines [N, k].

    >>> nearest(np.eye(3), np.array([[0.9, 0.1, 0.0]]), k=2).index
    array([[0, 1]])
    """
    require_count("k", k, advice="say 10.")
    require_one_of("backend", backend, BACKENDS)
    rows_Md = unit(bank)
    if queries is not None:
        rows_Nd = unit(queries)
        if rows_Nd.shape[1] != rows_Md.shape[1]:
            raise ValueError(
                f"queries must have the {rows_Md.shape[1]} columns of the bank, got {rows_Nd.shape[1]}; embed both by "
                "one encoder."
            )
        return _search(rows_Md, rows_Nd, min(k, len(rows_Md)), backend)
    if len(rows_Md) < 2:
        raise ValueError(f"neighbours must be found among at least 2 images, got {len(rows_Md)}; add more.")
    found = _search(rows_Md, rows_Md, min(k + 1, len(rows_Md)), backend)
    own = np.arange(len(rows_Md))[:, None]
    others = found.index != own
    others[others.all(1), -1] = False  # a copy stood before it, and pushed it out
    shape = (len(rows_Md), found.index.shape[1] - 1)
    return Nearest(found.index[others].reshape(shape), found.cosine[others].reshape(shape))


def _search(bank_Md: Floats, queries_Nd: Floats, k: int, backend: str) -> Nearest:
    if backend == "faiss" or (backend == "auto" and importlib.util.find_spec("faiss") is not None):
        index = importlib.import_module("faiss").IndexFlatIP(bank_Md.shape[1])
        index.add(bank_Md)
        cosine, numbers = index.search(queries_Nd, k)
        return Nearest(numbers.astype(np.int64), cosine)
    found = [_of_block(bank_Md, block, k) for block in _blocks(queries_Nd, len(bank_Md))]
    return Nearest(np.concatenate([part.index for part in found]), np.concatenate([part.cosine for part in found]))


def _blocks(rows: Floats, entries: int) -> list[Floats]:
    at_once = max(1, ENTRIES_AT_ONCE // entries)
    return [rows[start : start + at_once] for start in range(0, len(rows), at_once)]


def _of_block(bank_Md: Floats, queries_Nd: Floats, k: int) -> Nearest:
    cosine = queries_Nd @ bank_Md.T
    top = (
        np.argpartition(-cosine, k - 1, axis=1)[:, :k]
        if k < cosine.shape[1]
        else np.arange(k)[None].repeat(len(cosine), 0)
    )
    values = np.take_along_axis(cosine, top, 1)
    order = np.lexsort((top, -values), axis=1)  # of equals the first in the bank
    return Nearest(np.take_along_axis(top, order, 1), np.take_along_axis(values, order, 1))


def duplicates(features: NDArray[np.floating], *, threshold: float = 0.99) -> list[Pair]:
    """Pairs of rows with a cosine of at least `threshold`, the most alike first; all pairs are compared.

    Args:
        features: [N, d].
        threshold: at most 1.

    Returns:
        The pairs, the smaller number first.

    >>> duplicates(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.01]]))
    [Pair(first=0, second=2, cosine=0.99995)]
    """
    require_number("threshold", threshold, above=-1, below=1 + 1e-9, advice="0.99 finds copies, 0.9 finds look-alikes.")
    rows, found = unit(features), list[Pair]()
    first = 0
    for block in _blocks(rows, len(rows)):
        cosine = block @ rows[first:].T
        for i, j in np.argwhere(np.triu(cosine >= threshold - 1e-6, 1)):
            found.append(Pair(first + int(i), first + int(j), round(float(min(cosine[i, j], 1)), 6)))
        if len(found) > MOST_PAIRS:
            raise ValueError(
                f"threshold must leave at most {MOST_PAIRS:,} pairs, got {threshold} with more; raise it, and see "
                "whether the features have collapsed."
            )
        first += len(block)
    return sorted(found, key=lambda pair: (-pair.cosine, pair.first, pair.second))


def outlier_scores(features: NDArray[np.floating], *, k: int = 10) -> Floats:
    """1 less the mean cosine with the k nearest others: how far each row is from its neighbours.

    Args:
        features: [N, d].
        k: neighbours of each row.

    Returns:
        Scores [N]; 0 is in the middle of its like.

    >>> outlier_scores(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), k=1)
    array([0., 0., 1.], dtype=float32)
    """
    scores: Floats = 1 - nearest(features, k=k).cosine.mean(1)
    return scores.astype(np.float32)
