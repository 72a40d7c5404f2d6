"""The processes of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from flatclr.distributed import Ranks, ranks_sharing_a_batch


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Join the processes that torchrun started, for the time of a `with` block; alone, do nothing.

    Returns:
        A context that gives this process's rank and how many there are.

    >>> with process_group() as ranks:
    ...     print(ranks.rank, "of", ranks.size)
    0 of 1
    """
    if "RANK" not in os.environ or dist.is_initialized():
        yield ranks_sharing_a_batch(gather=True)
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield ranks_sharing_a_batch(gather=True)
    finally:
        dist.destroy_process_group()
