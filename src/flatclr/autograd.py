"""What the hand-written backward passes share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def refuse_double_backward() -> None:
    """Called first in every backward: what is kept for it does not carry the graph a second derivative needs."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "second derivatives must not be asked of a contrast, got create_graph=True; "
            "write it in plain PyTorch for those."
        )


def keep_scale(ctx: Any, scale: float | Tensor) -> list[Tensor]:
    """What to save for backward of a scale: a tensor goes where autograd notices a change of it in between."""
    ctx.scale = None if isinstance(scale, Tensor) else scale
    return [scale] if isinstance(scale, Tensor) else []


def kept_scale(ctx: Any, saved: list[Tensor]) -> float | Tensor:
    """The inverse of `keep_scale`; `saved` is what it returned."""
    return saved[0] if saved else float(ctx.scale)
