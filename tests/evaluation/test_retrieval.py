"""Retrieval and its interval, against loops and the jackknife."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor

import flatclr
from flatclr.evaluation import retrieval
from flatclr.evaluation.intervals import jackknife
from flatclr.evaluation.protocols import frozen
from flatclr.evaluation.retrieval import retrieve
from tests.support.evaluation import small_data, small_encoder


def two_clouds(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.arange(samples) % 2
    return torch.randn(samples, 4, generator=generator) + 0.8 * labels.unsqueeze(1), labels


def test_retrieval_intervals_cover_the_truth_as_often_as_they_say() -> None:
    generator = torch.Generator().manual_seed(0)
    trials, samples = 60, 120

    def precision(z: Tensor, labels: Tensor) -> float:
        return retrieve(z, labels).average_precision_N.mean().item()

    truth = sum(precision(*two_clouds(samples, generator)) for _ in range(600)) / 600
    covered = 0
    for trial in range(trials):
        z, labels = two_clouds(samples, generator)
        score = jackknife(
            lambda rows, z=z, labels=labels: {"map": precision(z[rows], labels[rows])}, samples, seed=trial
        )  # type: ignore[misc]
        covered += score["map"].low <= truth <= score["map"].high
    # three standard errors of a share of 0.95
    assert covered / trials >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)


def test_retrieval_has_the_interval_of_the_jackknife(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    find = frozen.retrieve

    def counted(z: Tensor, labels: Tensor, **options: object) -> object:
        seen.append(len(labels))
        return find(z, labels, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(frozen, "retrieve", counted)
    found = flatclr.evaluate(small_encoder(), small_data(), "retrieval", random_row=False)
    assert len(seen) == 21
    assert max(seen[1:]) < 90
    assert all(0 <= score.low <= score.high <= 1 for score in found["retrieval"].scores.values())


def test_retrieval_is_a_loop_over_queries() -> None:
    features, labels = torch.randn(60, 5), torch.randint(4, (60,))
    labels[59] = 9  # the only one of its class: no query
    found = retrieval.retrieve(features, labels)
    unit = torch.nn.functional.normalize(features)
    precisions, recalls = [], []
    for query in range(59):
        others = [i for i in range(60) if i != query]
        scores = np.array([float(unit[query] @ unit[i]) for i in others])
        relevant = np.array([labels[i] == labels[query] for i in others])
        precisions.append(metrics.average_precision_score(relevant, scores))
        ranked = relevant[np.argsort(-scores)]
        recalls.append([ranked[:k].any() for k in retrieval.RANKS])
    np.testing.assert_allclose(found.average_precision_N.numpy(), precisions, atol=1e-5)
    assert np.array_equal(found.recall_NK.numpy(), recalls)
