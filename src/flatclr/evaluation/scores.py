"""What predictions are worth: accuracies, confusion, average precision.

Shape suffixes: N samples, C classes, B bootstrap resamples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.evaluation.intervals import Score, Statistic, bootstrap, mean_of

UNBALANCED = 1.5  # largest over smallest class of the test samples, from which the mean over classes is the headline


@dataclass(frozen=True)
class Scores:
    """Named numbers; `headline` is the one to compare by."""

    headline: str
    values: Mapping[str, Score]
    per_class: Mapping[str, float] = field(default_factory=dict)
    confusion: list[list[int]] | None = None  # rows: true class, columns: predicted


def score_predictions(logits_NC: Tensor, labels: Tensor, classes: tuple[str, ...], *, seed: int = 0) -> Scores:
    """Of class numbers [N] or of a yes or no per class [N, C]."""
    if labels.dim() == 2:
        return _multi_label(logits_NC, labels, classes, seed)
    device = labels.device
    correct_N = logits_NC.argmax(1) == labels
    one_hot_NC = F.one_hot(labels, len(classes)).float()
    values = {
        "top1": bootstrap(mean_of(correct_N), len(labels), device=device, seed=seed),
        "mean_per_class": bootstrap(mean_per_class(correct_N, one_hot_NC), len(labels), device=device, seed=seed),
    }
    if len(classes) > 5:
        values["top5"] = bootstrap(mean_of(within_top(logits_NC, labels, 5)), len(labels), device=device, seed=seed)
    counts_C = one_hot_NC.sum(0)
    hits_C = (one_hot_NC * correct_N.unsqueeze(1)).sum(0)
    per_class = {
        name: hits / count
        for name, hits, count in zip(classes, hits_C.tolist(), counts_C.tolist(), strict=True)
        if count
    }
    present_C = counts_C[counts_C > 0]
    unbalanced = bool(present_C.max() > UNBALANCED * present_C.min())
    confusion = confusion_matrix(logits_NC.argmax(1), labels, len(classes)).tolist()
    return Scores("mean_per_class" if unbalanced else "top1", values, per_class, confusion)


def within_top(logits_NC: Tensor, labels: Tensor, k: int) -> Tensor:
    """Whether fewer than k other classes score as high as the true one: a tie counts against it.

    >>> within_top(torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([0]), 2)
    tensor([False])
    """
    own_N1 = logits_NC.gather(1, labels.unsqueeze(1))
    return (logits_NC >= own_N1).sum(1) <= k


def mean_per_class(correct_N: Tensor, one_hot_NC: Tensor) -> Statistic:
    """Accuracy of every class that was drawn, averaged over classes."""
    hits_NC = one_hot_NC * correct_N.unsqueeze(1)

    def statistic(weights_BN: Tensor) -> Tensor:
        counts_BC = weights_BN @ one_hot_NC
        shares_BC = weights_BN @ hits_NC / counts_BC.clamp_min(1)
        return shares_BC.sum(1) / (counts_BC > 0).sum(1)

    return statistic


def confusion_matrix(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Counts [true, predicted].

    >>> confusion_matrix(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2)
    tensor([[1, 1],
            [0, 1]])
    """
    return torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes)


def average_precision(scores_N: Tensor, wanted_N: Tensor) -> Statistic:
    """Mean over wanted samples of the precision among those that score at least as high, ties in order of position."""
    order = scores_N.argsort(descending=True, stable=True)
    wanted = wanted_N[order].double()

    def statistic(weights_BN: Tensor) -> Tensor:
        weights = weights_BN[:, order].double()
        found = (weights * wanted).cumsum(1)
        precision = found / weights.cumsum(1).clamp_min(1)
        return (weights * wanted * precision).sum(1) / found[:, -1].clamp_min(1)

    return statistic


def _multi_label(logits_NC: Tensor, targets_NC: Tensor, classes: tuple[str, ...], seed: int) -> Scores:
    present = [c for c in range(len(classes)) if targets_NC[:, c].any()]
    by_class = {c: average_precision(logits_NC[:, c], targets_NC[:, c]) for c in present}

    def mean(weights_BN: Tensor) -> Tensor:
        return torch.stack([statistic(weights_BN) for statistic in by_class.values()]).mean(0)

    everyone = torch.ones(1, len(targets_NC), device=targets_NC.device)
    per_class = {classes[c]: statistic(everyone).item() for c, statistic in by_class.items()}
    score = bootstrap(mean, len(targets_NC), device=targets_NC.device, seed=seed)
    return Scores("mean_average_precision", {"mean_average_precision": score}, per_class)


def selection_score(logits_NC: Tensor, labels: Tensor) -> float:
    """What hyper-parameters are chosen by: top-1 accuracy, or mean average precision of several classes per sample."""
    if labels.dim() == 1:
        return (logits_NC.argmax(1) == labels).double().mean().item()
    everyone = torch.ones(1, len(labels), device=labels.device)
    precisions = [
        average_precision(logits_NC[:, c], labels[:, c])(everyone).item()
        for c in range(labels.shape[1])
        if labels[:, c].any()
    ]
    return sum(precisions) / max(1, len(precisions))
