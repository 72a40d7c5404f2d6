"""What predictions are worth: accuracies, confusion, average precision.

Shape suffixes: N samples, C classes, B bootstrap resamples.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.evaluation.intervals import Score, Statistic, as_share, bootstrap, mean_of, over_draws, wilson

UNBALANCED = (
    1.5  # largest over smallest class of the training samples, from which the mean over classes is the headline
)


@dataclass(frozen=True)
class Scores:
    """Named numbers; `headline` is the one to compare by."""

    headline: str
    values: Mapping[str, Score]
    per_class: Mapping[str, Score] = field(default_factory=dict)
    confusion: list[list[int]] | None = None  # rows: true class, columns: predicted
    correct: str = ""  # which samples, `packed_bits`; "" for several draws or several classes per sample


def score_predictions(
    draws: Sequence[Tensor], labels: Tensor, classes: tuple[str, ...], *, unbalanced: bool = False, seed: int = 0
) -> Scores:
    """Of the logits [N, C] of one draw or several, for class numbers [N] or a yes or no per class [N, C].

    Values are means over the draws, their intervals those of `over_draws`; confusions are added up.
    """
    if labels.dim() == 2:
        return _multi_label(draws, labels, classes, seed)
    one_hot_NC = F.one_hot(labels, len(classes)).float()
    measures = [_accuracies(logits_NC, labels, one_hot_NC) for logits_NC in draws]
    values = {name: _score([draw[name] for draw in measures], labels, seed) for name in measures[0]}
    counts_C = one_hot_NC.sum(0).long().tolist()
    confusion = sum(confusion_matrix(logits_NC.argmax(1), labels, len(classes)) for logits_NC in draws)
    hits_DC = [confusion_matrix(logits_NC.argmax(1), labels, len(classes)).diagonal().tolist() for logits_NC in draws]
    per_class = {}
    for name, count, *hits in zip(classes, counts_C, *hits_DC, strict=True):
        if count:
            shares = [wilson(hit / count, count) for hit in hits]
            over_all = over_draws(shares, wilson(sum(hits) / len(hits) / count, count))
            per_class[name] = as_share(over_all, count)
    assert isinstance(confusion, Tensor)
    correct = packed_bits(draws[0].argmax(1) == labels) if len(draws) == 1 else ""
    return Scores("mean_per_class" if unbalanced else "top1", values, per_class, confusion.tolist(), correct)


def packed_bits(yes_N: Tensor) -> str:
    """One bit for each sample, in order, the last byte filled up with zeros; in base64.

    >>> packed_bits(torch.tensor([True, False, False, False, False, False, True, True, True]))
    'g4A='
    """
    return base64.b64encode(np.packbits(yes_N.cpu().numpy()).tobytes()).decode()


def is_unbalanced(labels: Tensor) -> bool:
    """Whether the mean over classes should be the headline; of training labels, so that no test label decides.

    >>> is_unbalanced(torch.tensor([0, 0, 1])), is_unbalanced(torch.tensor([0, 0, 1, 1, 1]))
    (True, False)
    """
    if labels.dim() == 2:
        return False
    counts = torch.bincount(labels)
    present = counts[counts > 0]
    return bool(present.max() > UNBALANCED * present.min())


def _accuracies(logits_NC: Tensor, labels: Tensor, one_hot_NC: Tensor) -> dict[str, Statistic]:
    correct_N = logits_NC.argmax(1) == labels
    found = {"top1": mean_of(correct_N), "mean_per_class": mean_per_class(correct_N, one_hot_NC)}
    return found | ({"top5": mean_of(within_top(logits_NC, labels, 5))} if logits_NC.shape[1] > 5 else {})


def _score(by_draw: Sequence[Statistic], labels: Tensor, seed: int) -> Score:
    everyone = torch.ones(1, len(labels), device=labels.device)

    def mean(weights_BN: Tensor) -> Tensor:
        return torch.stack([statistic(weights_BN) for statistic in by_draw]).mean(0)

    pooled = bootstrap(mean, len(labels), device=labels.device, seed=seed)
    values = [statistic(everyone).double().item() for statistic in by_draw]
    return as_share(over_draws([Score(value, value, value) for value in values], pooled), len(labels))


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


def _multi_label(draws: Sequence[Tensor], targets_NC: Tensor, classes: tuple[str, ...], seed: int) -> Scores:
    present = [c for c in range(len(classes)) if targets_NC[:, c].any()]
    by_class = {c: [average_precision(logits[:, c], targets_NC[:, c]) for logits in draws] for c in present}

    def mean_of_draw(draw: int) -> Statistic:
        return lambda weights_BN: torch.stack([by_class[c][draw](weights_BN) for c in present]).mean(0)

    per_class = {classes[c]: _score(by_draw, targets_NC, seed) for c, by_draw in by_class.items()}
    mean = _score([mean_of_draw(draw) for draw in range(len(draws))], targets_NC, seed)
    return Scores("mean_average_precision", {"mean_average_precision": mean}, per_class)


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
