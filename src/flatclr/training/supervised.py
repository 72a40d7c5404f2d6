"""Training with labels by the loop of all objectives: what a run without them is compared with.

Shape suffixes: V views, N samples of the global batch, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.contrast import ContrastStats, PairSet
from flatclr.contrast.numerics import accumulation_type, no_autocast
from flatclr.data.sources import AnySource, PairedArrays, ReadyViews
from flatclr.objectives.base import Objective, Traits
from flatclr.objectives.sample_state import index_of_all_ranks
from flatclr.training.config import SUPERVISED, TrainConfig


class CrossEntropy(Objective):
    """Cross-entropy of the classes of all views, whose embeddings are logits.

        loss = mean over views v and samples i of -log softmax(z_vi)[label_i]

    The stats that come with it are those of cosines at temperature 0.1, gauges alone.

    Args:
        labels: the class numbers [M] of all samples of the data; calls say by `index=` which samples they are.
        gather: whether ranks share a batch.

    >>> objective = CrossEntropy(torch.tensor([0, 1]))
    >>> logits = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    >>> objective(logits, logits, index=torch.tensor([0, 1])) < 1e-3
    tensor(True)
    """

    traits = Traits(
        "cross-entropy of labels, for comparison",
        temperature=None,
        accepts_control=False,
        uses_negatives=False,
        keeps_samples=True,
    )
    labels: Tensor

    def __init__(self, labels: Tensor, *, gather: bool = False) -> None:
        super().__init__(0.1, gather=gather)
        self.register_buffer("labels", labels.clone(), persistent=False)  # the data has them

    def loss_of_samples(
        self, pairs: PairSet, inverse_temperature: float | Tensor, index: Tensor | None
    ) -> tuple[Tensor, ContrastStats | None]:
        labels_N = self.labels[index_of_all_ranks(type(self).__name__, index, pairs)]
        with no_autocast(pairs.views[0]):
            precision = accumulation_type(pairs.views[0])
            logits_VNC = pairs.gathered(torch.stack([view.to(precision) for view in pairs.views]))
            return F.cross_entropy(logits_VNC.flatten(0, 1), labels_N.repeat(len(logits_VNC))), None


def class_labels(config: TrainConfig, source: AnySource) -> Tensor | None:
    """What a supervised run learns, None for any other; data without one class for each sample are refused."""
    if config.objective != SUPERVISED:
        return None
    labels = None if isinstance(source, PairedArrays | ReadyViews) else source.labels
    if labels is None or len(labels.unique()) < 2:
        raise ValueError(
            f"objective 'supervised' must have images of two classes or more, one for each image, got {source.name}; "
            "pass labelled images."
        )
    return labels
