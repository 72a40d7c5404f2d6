"""Neighbours, near-duplicates and outliers, against loops over pairs in float64."""

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from flatclr.evaluation import search
from flatclr.evaluation.search import duplicates, nearest, outlier_scores


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True)) / (
        math.sqrt(sum(float(x) ** 2 for x in a)) * math.sqrt(sum(float(y) ** 2 for y in b))
    )


@given(st.integers(2, 30), st.integers(1, 12), st.integers(0, 99))
def test_the_nearest_are_those_of_a_loop_over_all_pairs(rows: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    bank, queries = rng.normal(size=(rows, 5)), rng.normal(size=(7, 5))
    found = nearest(bank, queries, k=k, backend="numpy")

    for query, index, values in zip(queries, found.index, found.cosine, strict=True):
        oracle = sorted(((-cosine(query, row), i) for i, row in enumerate(bank)))[: min(k, rows)]
        assert index.tolist() == [i for _, i in oracle]
        np.testing.assert_allclose(values, [-value for value, _ in oracle], atol=1e-6)


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = np.random.default_rng(0).normal(size=(50, 4))
    whole = nearest(bank, k=3, backend="numpy"), duplicates(bank, threshold=0.9)
    monkeypatch.setattr(search, "ENTRIES_AT_ONCE", 120)
    parts = nearest(bank, k=3, backend="numpy"), duplicates(bank, threshold=0.9)

    assert (whole[0].index == parts[0].index).all()
    assert [pair[:2] for pair in whole[1]] == [pair[:2] for pair in parts[1]]
    assert len(whole[1]) > 5


def test_a_row_does_not_find_itself_not_even_among_copies() -> None:
    bank = np.ones((5, 3))
    found = nearest(bank, k=3, backend="numpy")

    assert found.index.shape == (5, 3)
    assert not (found.index == np.arange(5)[:, None]).any()


def test_duplicates_are_all_pairs_above_the_threshold() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(40, 3))
    oracle = {(i, j) for j in range(40) for i in range(j) if cosine(rows[i], rows[j]) >= 0.95}

    assert {pair[:2] for pair in duplicates(rows, threshold=0.95)} == oracle
    cosines = [pair.cosine for pair in duplicates(rows, threshold=0.5)]
    assert cosines == sorted(cosines, reverse=True)


def test_collapsed_features_are_refused_instead_of_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MOST_PAIRS", 100)
    with pytest.raises(ValueError, match=r"threshold must leave at most 100 pairs, got 0\.99 with more; raise it"):
        duplicates(np.ones((40, 3)))


def test_the_outlier_is_the_row_far_from_its_neighbours() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 8)) * 0.1 + np.eye(8)[0]
    rows[17] = np.eye(8)[3]

    assert int(outlier_scores(rows, k=5).argmax()) == 17


def test_faiss_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    plain = nearest(bank, bank[:3], k=4, backend="numpy")
    asked = []

    class IndexFlatIP:
        def __init__(self, width: int) -> None:
            assert width == 4

        def add(self, rows: np.ndarray) -> None:
            self.rows = rows

        def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
            asked.append(k)
            scores = queries @ self.rows.T
            order = np.argsort(-scores, axis=1)[:, :k]
            return np.take_along_axis(scores, order, 1), order

    faiss = ModuleType("faiss")
    faiss.IndexFlatIP = IndexFlatIP  # type: ignore[attr-defined]
    faiss.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "faiss", faiss)
    found = nearest(bank, bank[:3], k=4)

    assert asked == [4]
    assert (found.index == plain.index).all()


def test_faiss_itself_finds_the_same() -> None:
    pytest.importorskip("faiss")
    bank = np.random.default_rng(0).normal(size=(500, 16))
    by_faiss, by_numpy = (nearest(bank, k=5, backend=backend) for backend in ("faiss", "numpy"))

    assert (by_faiss.index == by_numpy.index).all()
    np.testing.assert_allclose(by_faiss.cosine, by_numpy.cosine, atol=1e-6)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="k must be a whole number >= 1, got 0"):
        nearest(np.eye(3), k=0)
    with pytest.raises(ValueError, match="among at least 2 images, got 1"):
        nearest(np.ones((1, 3)))
    with pytest.raises(ValueError, match="threshold must be a finite number > -1 and < 1, got 2"):
        duplicates(np.eye(3), threshold=2)
