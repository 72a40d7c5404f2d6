"""Information about a discrete variable by predicting it: I(x; y) >= H(y) - E[-log q(y | x)], whatever q."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatclr.mi.arrays import Array, Integers, as_tensor
from flatclr.mi.columns import is_discrete
from flatclr.mi.fit import fit
from flatclr.mi.held_out import seeded
from flatclr.mi.limits import all_pairs
from flatclr.mi.margins import RankNormal
from flatclr.mi.outcome import MethodOptions, Outcome, Reading, outcome_of
from flatclr.mi.splits import Split
from flatclr.models.critics.networks import network, start_at_zero

_ROWS_PER_CLASS = 50
_MOST_CLASSES = 200


@dataclass(frozen=True)
class Labels:
    """A discrete variable as class numbers."""

    numbers: Integers
    counts: Integers

    @property
    def surprises(self) -> Array:
        """-log p(y) of each row by the classes' shares; the mean is the plug-in entropy, which reads low if at all."""
        surprise: Array = -np.log(self.counts / len(self.numbers))
        return surprise[self.numbers]


def labels_of(rows: Array) -> Labels | None:
    """Class numbers of the distinct rows, None where a column is continuous or classes are many for the rows."""
    if not all(is_discrete(column) for column in rows.T):
        return None
    _, numbers, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    few = len(counts) <= min(len(rows) / _ROWS_PER_CLASS, _MOST_CLASSES)
    return Labels(numbers.ravel(), counts) if few else None


def with_labels(x: Array, y: Array) -> tuple[Array, Labels] | None:
    """(the other variable, the discrete one), the one of fewer classes where both are discrete; None if none is."""
    found = [(other, labels) for other, labels in ((x, labels_of(y)), (y, labels_of(x))) if labels is not None]
    return min(found, key=lambda pair: len(pair[1].counts), default=None)


class Classifier(nn.Module):
    """q(y | x) = softmax of a linear discriminant, as fitted to these rows, plus a residual that starts at zero."""

    batch_size = 256

    def __init__(self, x: Tensor, labels: Tensor, classes: int, hidden: int) -> None:
        super().__init__()
        weight_dC, bias_C = linear_discriminant(x.double(), labels, classes)
        self.weight, self.bias = nn.Parameter(weight_dC.float()), nn.Parameter(bias_C.float())
        self.net = network(x.shape[1], classes, hidden)
        start_at_zero(self.net)

    def log_density(self, x: Tensor, labels: Tensor) -> Tensor:
        """log q(y_i | x_i), [N]."""
        logits: Tensor = x @ self.weight + self.bias + self.net(x)
        return -F.cross_entropy(logits, labels, reduction="none")

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        return -self.log_density(x, labels).mean()

    @torch.no_grad()
    def validate(self, x: Tensor, labels: Tensor) -> float:
        return float(self.log_density(x, labels).mean())


def linear_discriminant(x_Nd: Tensor, labels_N: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Weights [d, C] and biases [C] of log p(c | x) for Gaussian classes of one covariance.

    One row at the common mean is added to each class, and d / N to the variances, so that rare classes and wide rows do
    no harm.
    """
    member_NC = F.one_hot(labels_N, classes).to(x_Nd.dtype)
    counts_C = member_NC.sum(0) + 1
    centre = x_Nd.mean(0)
    means_Cd = member_NC.T @ (x_Nd - centre) / counts_C[:, None] + centre
    within = x_Nd - means_Cd[labels_N]
    ridge = x_Nd.shape[1] / len(x_Nd)
    covariance = within.T @ within / len(x_Nd) + ridge * torch.eye(x_Nd.shape[1], dtype=x_Nd.dtype)
    weight_dC = torch.linalg.solve(covariance, means_Cd.T)
    return weight_dC, (counts_C / counts_C.sum()).log() - (means_Cd.T * weight_dC).sum(0) / 2


def run_classifier(x: Array, labels: Labels, split: Split, options: MethodOptions) -> tuple[Outcome, Reading]:
    """H(y) less the cross-entropy on evaluation rows, and the reading on validation."""
    scores, numbers = as_tensor(RankNormal.fit(x[split.train])(x)), torch.from_numpy(labels.numbers)
    train, validation, evaluation = (torch.from_numpy(part) for part in vars(split).values())
    with seeded(options.seed) as generator:
        learner = Classifier(scores[train], numbers[train], len(labels.counts), options.settings.hidden)
        held_out = (scores[validation], numbers[validation])
        curve = fit(learner, (scores[train], numbers[train]), held_out, options.settings, generator, options.budget)
    surprises = torch.from_numpy(labels.surprises)
    entropy_nats = float(surprises.mean())

    @torch.no_grad()
    def read(rows: Tensor) -> Reading:
        values = surprises[rows] + learner.log_density(scores[rows], numbers[rows]).double()
        return Reading(values, values, entropy_nats, all_pairs(len(rows)))

    reading = read(validation)
    nats_curve = tuple((step, entropy_nats + value) for step, value in curve)
    outcome = outcome_of(read(evaluation), reading, nats_curve, kind="lower", ceiling_hides=False)
    # of equally likely classes all rows have one surprise; their plug-in entropy still errs like a chi-square
    second_order = math.sqrt((len(labels.counts) - 1) / 2) / outcome.rows
    return replace(outcome, nats=min(outcome.nats, entropy_nats), second_order=second_order), reading
