"""A queue of past embeddings as extra negatives (MoCo)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flatclr.checks import require_count


class EmbeddingQueue(nn.Module):
    """The last `size` embeddings, oldest overwritten first; part of the state dict.

    Until it is full the remaining rows are random directions, so that the number of negatives never changes.

    >>> queue = EmbeddingQueue(4, 2)
    >>> queue.push(torch.ones(3, 2))
    >>> int((queue.rows == 1).all(1).sum())
    3
    """

    rows: Tensor
    position: Tensor

    def __init__(self, size: int, d: int, *, seed: int = 0) -> None:
        super().__init__()
        require_count("queue size", size, advice="use a multiple of the batch size.")
        start = torch.randn(size, d, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("rows", nn.functional.normalize(start, dim=1))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def push(self, embeddings: Tensor) -> None:
        """Replace the oldest rows, on the device, without waiting for it."""
        size = len(self.rows)
        newest = embeddings.detach()[-size:].to(self.rows)
        where = (self.position + torch.arange(len(newest), device=self.rows.device)) % size
        self.rows.index_copy_(0, where, newest)
        self.position.add_(len(newest)).remainder_(size)
