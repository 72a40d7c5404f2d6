"""How many negatives really carry the gradient."""

from __future__ import annotations

from torch import Tensor

from flatclr.checks import require_matrix
from flatclr.contrast.numerics import dense_ess


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """The share of a row's entries that carry its softmax.

        ess = 1 / (K sum_j w_j^2),  w = softmax of the row

    Of a batch, `stats.ess` holds it already.

    Args:
        log_weights: scores, or logarithms of weights, [A, K].

    Returns:
        [A], each in [1/K, 1]: 1 where all entries weigh the same, 1/K where one carries everything.

    >>> effective_sample_size(torch.tensor([[0.0, 0.0, 0.0, 0.0], [99.0, 0.0, 0.0, 0.0]]))
    tensor([1.0000, 0.2500])
    """
    require_matrix("log_weights", log_weights, "[A, K]")
    return dense_ess(log_weights, log_weights.shape[1])
