"""The nearest-neighbour vote is scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

import flatclr
from flatclr.data.sources import Dataset, ResidentImages
from flatclr.evaluation import knn


def test_ten_neighbours_with_equal_votes_are_those_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (300, 1, 6, 6), dtype=torch.uint8, generator=generator)
    labels = torch.arange(300) % 4
    images[:, 0, 0] = (60 * labels[:, None]).to(torch.uint8)
    parts = [ResidentImages(images[part], labels[part], name="noisy") for part in (slice(0, 200), slice(200, 300))]

    found = flatclr.evaluate(lambda x: x.flatten(1), Dataset("noisy", *parts), "knn")

    train, test = (part.images.flatten(1).double().numpy() for part in parts)
    known = KNeighborsClassifier(10, metric="cosine").fit(train, labels[:200]).score(test, labels[200:])
    assert 0.3 < known < 0.95
    assert found["knn"].scores["top1_k10"].value == pytest.approx(known)


@pytest.mark.parametrize("k", [1, 5, 20])
def test_knn_is_scikit_learns_with_the_same_weights(k: int) -> None:
    bank, queries = torch.randn(400, 8), torch.randn(100, 8)
    labels = (bank[:, 0] > 0).long() + 2 * (bank[:, 1] > 0).long()
    model = KNeighborsClassifier(k, metric="cosine", weights=lambda distance: np.exp(-distance / 0.07))
    wanted = model.fit(bank.numpy(), labels.numpy()).predict_proba(queries.numpy())
    votes = knn.knn_votes(bank, labels, queries, k=k)
    np.testing.assert_allclose((votes / votes.sum(1, keepdim=True)).numpy(), wanted, atol=1e-4)


def test_knn_memory_is_bounded_by_the_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, queries, labels = torch.randn(64, 4), torch.randn(100, 4), torch.randint(3, (64,))
    whole = knn.knn_votes(bank, labels, queries, k=5)
    seen = []
    topk = torch.Tensor.topk
    monkeypatch.setattr(torch.Tensor, "topk", lambda self, *a, **k: seen.append(self.numel()) or topk(self, *a, **k))
    monkeypatch.setattr(knn, "ENTRIES_AT_ONCE", 640)
    assert torch.allclose(knn.knn_votes(bank, labels, queries, k=5), whole, atol=1e-6)
    assert len(seen) == 10
    assert max(seen) <= 640
