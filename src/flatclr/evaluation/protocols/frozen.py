"""Protocols on frozen features and labels: nearest neighbours, a linear probe, retrieval."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from flatclr.evaluation.bench import Bench
from flatclr.evaluation.intervals import as_share, bootstrap, jackknife, largest_group, mean_of
from flatclr.evaluation.knn import knn_votes, neighbours_for
from flatclr.evaluation.linear import ADAM, fit_by_adam, fit_probe
from flatclr.evaluation.protocols.base import Measured, Protocol, scored
from flatclr.evaluation.retrieval import RANKS, retrieve
from flatclr.evaluation.scores import Scores, selection_score

TEN_NEIGHBOURS = "top1_k10"
TEMPERATURE = 0.07  # of the votes of neighbours


def measure_knn(bench: Bench) -> Iterator[Measured]:
    """Votes of the nearest training images; beside them, ten neighbours with equal votes."""
    train = bench.data.train
    features = bench.features(train), bench.data.labels.to(bench.device), bench.features(bench.test)
    k = neighbours_for(len(train))
    found = scored(bench, knn_votes(*features, k=k, temperature=TEMPERATURE, classes=bench.classes))
    by_ten = knn_votes(*features, k=10, temperature=math.inf, classes=bench.classes).argmax(1) == bench.test_labels
    ten = bootstrap(mean_of(by_ten), len(by_ten), device=bench.device, seed=bench.seed)
    scores = replace(found, values={**found.values, TEN_NEIGHBOURS: ten})
    yield Measured(scores, chosen={"k": k, "temperature": TEMPERATURE})


def measure_linear(bench: Bench, variant: str = "") -> Iterator[Measured]:
    """Logistic regression to convergence, its strength chosen on a tenth of the training images."""
    probe = fit_probe(
        bench.features(bench.data.train),
        bench.data.labels.to(bench.device),
        classes=bench.classes,
        score=selection_score,
        seed=bench.seed,
        progress=bench.progress,
    )
    fit = probe.classifier
    chosen = {
        "l2": fit.l2,
        "validation": [list(tried) for tried in probe.path],
        "iterations": fit.iterations,
        "converged": fit.converged,
    }
    yield Measured(scored(bench, fit.logits(bench.features(bench.test))), variant, chosen)


def measure_linear_by_adam(bench: Bench, variant: str = "") -> Iterator[Measured]:
    """A linear layer trained by Adam without a penalty, as in the FlatNCE paper."""
    fit = fit_by_adam(
        bench.features(bench.data.train), bench.data.labels.to(bench.device), classes=bench.classes, seed=bench.seed
    )
    chosen = {"l2": 0.0, "optimizer": "adam", "learning_rate": ADAM.rate, "epochs": ADAM.epochs}
    yield Measured(scored(bench, fit.logits(bench.features(bench.test))), bench.variant(variant), chosen)


def measure_retrieval(bench: Bench) -> Iterator[Measured]:
    """How many of the nearest test images are of the same class."""
    features, labels = bench.features(bench.test), bench.test_labels
    ranks = [k for k in RANKS if k < len(labels)]

    def means(rows: Tensor) -> dict[str, float]:
        found = retrieve(features[rows], labels[rows], ranks=ranks)
        recalls = {f"recall_at_{k}": found.recall_NK[:, i].float().mean().item() for i, k in enumerate(ranks)}
        return recalls | {"mean_average_precision": found.average_precision_N.mean().item()}

    found = jackknife(means, len(labels), seed=bench.seed, progress=bench.telling("retrieval"))
    values = {name: as_share(score, len(labels)) for name, score in found.items()}
    yield Measured(Scores("recall_at_1", values), chosen={"images": len(labels)})


def _too_few_to_validate(bench: Bench) -> str | None:
    if bench.data.several_classes or torch.bincount(bench.data.labels).max() > 1:
        return None
    return f"two training {bench.data.kind} of some class to validate on, got one of each"


def _too_few_to_find(bench: Bench) -> str | None:
    labels = bench.test_labels
    counts, left = torch.bincount(labels), len(labels) - largest_group(len(labels))
    if counts.max() - largest_group(len(labels)) >= 2 or left > (counts > 0).sum():
        return None
    return f"two test {bench.data.kind} of a class however a twentieth is left out, got fewer"


KNN = Protocol(2, measure_knn, one_class=True)
LINEAR = Protocol(2, measure_linear, too_few=_too_few_to_validate)
RETRIEVAL = Protocol(2, measure_retrieval, one_class=True, too_few=_too_few_to_find)
