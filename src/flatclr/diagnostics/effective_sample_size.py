"""How many negatives really carry the gradient."""

from __future__ import annotations

from torch import Tensor

from flatclr.checks import require_matrix
from flatclr.contrast.numerics import dense_ess


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """1 / (K sum_j w_j^2) of each row, w its softmax: in [1/K, 1]. For a batch, `stats.ess` holds it already.

    >>> effective_sample_size(torch.tensor([[0.0, 0.0, 0.0, 0.0], [99.0, 0.0, 0.0, 0.0]]))
    tensor([1.0000, 0.2500])
    """
    require_matrix("log_weights", log_weights, "[A, K]")
    return dense_ess(log_weights, log_weights.shape[1])
