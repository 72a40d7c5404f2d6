"""Positives that are other samples of the class."""

from __future__ import annotations

import torch
from torch import Tensor

from flatclr.checks import require_class_numbers
from flatclr.data.arrays import MOST_CLASSES


class ClassPositives:
    """For every sample another one of its class, each as probable as the others.

    Args:
        labels: class numbers [N] of all samples.
        name: of the data, for messages.

    Raises:
        ValueError: a class has one sample alone.

    >>> positives = ClassPositives(torch.tensor([0, 1, 0, 1]))
    >>> positives.of(torch.tensor([0, 3]), torch.rand(2)).tolist()
    [2, 1]
    """

    def __init__(self, labels: Tensor, *, name: str = "data") -> None:
        require_class_numbers("labels", labels, len(labels) if isinstance(labels, Tensor) and labels.dim() else 0)
        if len(labels) and int(labels.max()) >= MOST_CLASSES:
            raise ValueError(
                f"labels must be below {MOST_CLASSES:,}, got {int(labels.max())}; number the classes from 0 up."
            )
        self.labels = labels.long()
        self.counts = torch.bincount(self.labels)
        alone = (self.counts == 1).nonzero().flatten().tolist()
        if alone:
            raise ValueError(
                f"{name} must have two samples of every class for positives of the class, got one of class {alone[0]}; "
                "leave it out."
            )
        self.order = torch.argsort(self.labels, stable=True)  # samples class by class
        self.starts = self.counts.cumsum(0) - self.counts
        self.places = torch.empty_like(self.order)  # of every sample within its class
        self.places[self.order] = torch.arange(len(labels)) - self.starts[self.labels[self.order]]

    def of(self, index: Tensor, uniforms: Tensor) -> Tensor:
        """Another sample of the class of each.

        Args:
            index: samples [B].
            uniforms: what decides, in [0, 1) [B].

        Returns:
            Samples [B].
        """
        classes = self.labels[index]
        counts = self.counts[classes]
        step = 1 + (uniforms.double() * (counts - 1)).long()
        return self.order[self.starts[classes] + (self.places[index] + step) % counts]
