"""What the hand-written backward passes share."""

from __future__ import annotations

import torch


def refuse_double_backward() -> None:
    """Called first in every backward: what is kept for it does not carry the graph a second derivative needs."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "second derivatives must not be asked of a contrast, got create_graph=True; "
            "write it in plain PyTorch for those."
        )
