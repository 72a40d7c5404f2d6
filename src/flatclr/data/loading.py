"""Which samples make up step t, and their images on the device.

Every draw is a function of (seed, step) for the global batch, sliced by rank: a resumed run, or one on more processes,
sees the same batches.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from flatclr.checks import require_count


class Batches(Protocol):
    """What a loader needs of a source."""

    def __len__(self) -> int: ...
    def batch(self, index: Tensor) -> Tensor: ...


def seeded_generator(seed: int, *names: int | str) -> torch.Generator:
    """A generator of its own for every (seed, names), independent of how many draws others made."""
    digest = hashlib.sha256("/".join(map(str, (seed, *names))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


@dataclass(frozen=True)
class BatchPlan:
    """Epochs of shuffled samples cut into global batches; the incomplete last one of an epoch is dropped.

    >>> plan = BatchPlan(samples=10, batch_size=4, seed=0)
    >>> plan.steps_per_epoch, plan.indices(0).tolist() == plan.indices(0).tolist()
    (2, True)
    """

    samples: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        advice = f"the data has {self.samples} training samples."
        require_count("batch_size", self.batch_size, at_most=self.samples, advice=advice)

    @property
    def steps_per_epoch(self) -> int:
        return self.samples // self.batch_size

    def indices(self, step: int) -> Tensor:
        """The samples of a step, in global order."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = _epoch_order(self.samples, self.seed, epoch)
        return order[position * self.batch_size : (position + 1) * self.batch_size]


@lru_cache(maxsize=2)
def _epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(samples, generator=seeded_generator(seed, "order", epoch))


class Loader:
    """This rank's images of every step: indexed on the device where they fit, else read ahead by a thread."""

    def __init__(
        self, source: Batches, plan: BatchPlan, *, own: slice, device: torch.device, read_ahead: int = 4
    ) -> None:
        self.source, self.plan, self.own, self.device, self.read_ahead = source, plan, own, device, read_ahead
        images = getattr(source, "images", None)
        self.resident: Tensor | None = images.to(device) if isinstance(images, Tensor) else None

    def steps(self, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """(step, images) for first <= step < last."""
        if self.resident is not None:
            for step in range(first, last):
                yield step, self.resident[self.plan.indices(step)[self.own].to(self.device)]
            return
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="flatclr-read-ahead") as pool:
            ahead: deque[tuple[int, Future[Tensor]]] = deque()
            for step in range(first, last):
                while len(ahead) < self.read_ahead and step + len(ahead) < last:
                    ahead.append((step + len(ahead), pool.submit(self._read, step + len(ahead))))
                ready, future = ahead.popleft()
                yield ready, future.result().to(self.device, non_blocking=True)

    def _read(self, step: int) -> Tensor:
        images = self.source.batch(self.plan.indices(step)[self.own])
        return images.pin_memory() if self.device.type == "cuda" else images
