"""How much of a batch's gradient is signal, and how much is the luck of the draw."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from flatclr.checks import require_dense, shown


def gradient_snr(gradients: Iterable[Tensor]) -> float | None:
    """Gradient signal-to-noise ratio over batches drawn independently at the same weights.

        snr = |m| / sqrt(mean_b |g_b - m|^2),  m = mean_b g_b,  b over the B batches

    The mean of B batches has some noise left, so without any signal the ratio still reads about
    `gradient_snr_floor(B)`; the squared ratio of one batch is ((B - 1) snr^2 - 1) / B.

    Args:
        gradients: one per batch, all of one shape: the rows of a matrix [B, P], a list, or a generator that computes
            them one after another. A single weight of the last layer will do.

    Returns:
        The ratio, or None where the gradients do not differ or are not finite: then there is no noise to divide by.

    >>> gradient_snr(torch.tensor([[3.0, 1.0], [3.0, -1.0]]))
    3.0

    Of a model, with one micro-batch for every gradient:

    >>> model = torch.nn.Linear(4, 1)
    >>> def gradient_of(batch):
    ...     (gradient,) = torch.autograd.grad(model(batch).square().mean(), [model.weight])
    ...     return gradient
    >>> gradient_snr(gradient_of(batch) for batch in torch.randn(8, 32, 4)) > gradient_snr_floor(8)
    True
    """
    rows = list(gradients)
    _require_gradients(rows)
    gradients_BP = torch.stack([_accumulated(row) for row in rows])
    mean_P = gradients_BP.mean(0)
    noise = (gradients_BP - mean_P).square().sum(1).mean().sqrt()
    return (mean_P.norm() / noise).item() if noise > 0 else None


def gradient_snr_floor(batches: int) -> float:
    """What `gradient_snr` reads of noise alone: 1 / sqrt(B - 1).

    Args:
        batches: how many gradients the ratio was taken over, B >= 2.

    Returns:
        The ratio.

    >>> gradient_snr_floor(5)
    0.5
    """
    if isinstance(batches, bool) or not isinstance(batches, int) or batches < 2:
        raise ValueError(f"batches must be a whole number >= 2, got {shown(batches)}; noise shows between batches.")
    return 1 / math.sqrt(batches - 1)


def _accumulated(gradient: Tensor) -> Tensor:
    return gradient.detach().flatten().to(torch.promote_types(gradient.dtype, torch.float32))


def _require_gradients(rows: list[Tensor]) -> None:
    if len(rows) < 2:
        raise ValueError(f"gradients must come from at least 2 batches, got {len(rows)}; draw more of them.")
    for row in rows:
        if not isinstance(row, Tensor):
            raise TypeError(f"gradients must be tensors, got {type(row).__name__}; flatten and concatenate several.")
        require_dense("gradients", row)
    shapes = {tuple(row.shape) for row in rows}
    if len(shapes) > 1:
        raise ValueError(f"gradients must have one shape, got {sorted(shapes)}; take the same weights at every batch.")
