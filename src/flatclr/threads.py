"""How many threads PyTorch's operations on the CPU share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(count: int) -> Iterator[None]:
    """For a while, operations on the CPU take `count` threads of this process.

    Small operations are best done by one: where other programs keep the cores busy, each of them would wait until all
    its threads had had a turn.

    >>> with threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
