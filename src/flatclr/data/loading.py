"""Which samples make up step t, and their images on the device.

Every draw is a function of (seed, step) for the global batch, sliced by rank: a resumed run, or one on more processes,
sees the same batches.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, islice
from typing import Protocol

import torch
from torch import Tensor

from flatclr.checks import require_count
from flatclr.data.positives import ClassPositives

Batch = tuple[Tensor, ...]  # (images,), or both sides of paired data


class Batches(Protocol):
    """What a loader needs of a source."""

    def __len__(self) -> int: ...
    def batch(self, index: Tensor) -> Tensor | Batch: ...


def seeded_generator(seed: int, *names: int | str) -> torch.Generator:
    """A generator of its own for every (seed, names), independent of how many draws others made.

    Args:
        seed: of the run.
        names: what is drawn, say "order" and the number of the epoch.

    Returns:
        a CPU generator; equal arguments give equal draws on every machine.

    >>> first, again, other = (torch.rand(1, generator=seeded_generator(0, "order", i)) for i in (1, 1, 2))
    >>> bool(first == again), bool(first == other)
    (True, False)
    """
    named = "/".join(map(str, (seed, *names))).encode(errors="surrogatepass")  # file names may be any bytes
    digest = hashlib.sha256(named).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


@dataclass(frozen=True)
class BatchPlan:
    """Epochs of shuffled samples cut into global batches; the incomplete last one of an epoch is dropped.

    Args:
        samples: how many there are.
        batch_size: of the global batch, at most `samples`.
        seed: of the order, which is another in every epoch.
        shards: how many samples lie in each shard, one after another, where an epoch is to go by shards.
        shards_at_once: so many, drawn at random, are mixed and read to their end before the next; None: all samples are
            mixed.

    Raises:
        ValueError: batch_size is out of range, or shards do not add up to `samples`.

    >>> plan = BatchPlan(samples=10, batch_size=4, seed=0)
    >>> plan.steps_per_epoch, plan.indices(0).tolist() == plan.indices(0).tolist()
    (2, True)
    """

    samples: int
    batch_size: int
    seed: int
    shards: tuple[int, ...] = ()
    shards_at_once: int | None = None

    def __post_init__(self) -> None:
        fits = 1 << max(0, self.samples.bit_length() - 1)
        advice = f"the data has {self.samples} training samples: say --batch-size {fits}, or add more."
        require_count("batch_size", self.batch_size, at_most=self.samples, advice=advice)
        if self.shards_at_once is not None and sum(self.shards) != self.samples:
            raise ValueError(
                f"shards_at_once must be for data in shards, got {self.shards_at_once} for {self.samples} samples of "
                f"which {sum(self.shards)} are in shards; leave it out, or pack all of them."
            )

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in an epoch."""
        return self.samples // self.batch_size

    def indices(self, step: int) -> Tensor:
        """The samples of a step, in global order."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if self.shards_at_once is None:
            order = _epoch_order(self.samples, self.seed, epoch)
        else:
            order = _epoch_order_by_shards(self.shards, self.shards_at_once, self.seed, epoch)
        return order[position * self.batch_size : (position + 1) * self.batch_size]


@lru_cache(maxsize=2)
def _epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(samples, generator=seeded_generator(seed, "order", epoch))


@lru_cache(maxsize=2)
def _epoch_order_by_shards(shards: tuple[int, ...], at_once: int, seed: int, epoch: int) -> Tensor:
    """Some shards drawn at random, their samples mixed, then the next: no sample comes twice and none is left out."""
    generator = seeded_generator(seed, "order by shards", epoch)
    samples_of = torch.arange(sum(shards)).split(list(shards))
    drawn = torch.randperm(len(shards), generator=generator).split(at_once)
    mixed = (torch.cat([samples_of[shard] for shard in group.tolist()]) for group in drawn)
    return torch.cat([part[torch.randperm(len(part), generator=generator)] for part in mixed])


def _fits(tensors: Batch, device: torch.device) -> bool:
    """Half of what is free on a GPU at most: the encoder needs the rest."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return sum(tensor.nbytes for tensor in tensors) <= free // 2


class Loader:
    """This rank's part of every batch: indexed on the device where the data is in memory, else read ahead.

    A source in memory has its tensors, samples first, in an attribute `in_memory`. One that can read several batches at
    once says by `batches_in_flight(batch_size)` how many keep it busy; others are read by one thread.

    Args:
        source: of images or pairs; anything with `__len__` and `batch(index)`.
        plan: which samples make up a step.
        own: this rank's rows of a global batch.
        device: where batches go. A source in memory goes there whole, if it fits into half of what is free.
        read_ahead: how many batches are read before they are asked for, at least.
        positives: if given, a batch of images has a second part, another sample of the class of each.

    >>> source = flatclr.data.fashion_mnist_small().train
    >>> plan = BatchPlan(samples=len(source), batch_size=64, seed=0)
    >>> loader = Loader(source, plan, own=slice(0, 64), device=torch.device("cpu"))
    >>> [(step, images.shape) for step, (images,) in loader.steps(7, 8)]
    [(7, torch.Size([64, 1, 28, 28]))]
    """

    def __init__(
        self,
        source: Batches,
        plan: BatchPlan,
        *,
        own: slice,
        device: torch.device,
        read_ahead: int = 4,
        positives: ClassPositives | None = None,
    ) -> None:
        self.source, self.plan, self.own, self.device = source, plan, own, device
        self.positives = positives
        in_flight: Callable[[int], int] | None = getattr(source, "batches_in_flight", None)
        self.readers = 1 if in_flight is None else in_flight(len(self.own_indices(0)))
        self.read_ahead = max(read_ahead, self.readers)
        in_memory: Batch | None = getattr(source, "in_memory", None)
        self.resident: Batch | None = None
        if in_memory is not None and _fits(in_memory, device):
            self.resident = tuple(part.to(device) for part in in_memory)

    def batches(self, indices: Iterable[Tensor], keys: Iterable[int | str] | None = None) -> Iterator[Batch]:
        """The samples of each index, on the device, in the order asked for; the same key draws the same positives."""
        if self.positives is None:
            yield from self._fetched(indices)
            return
        drawn = zip(indices, count() if keys is None else keys, strict=False)
        with_positives = (torch.cat([index, self._partners(index, key)]) for index, key in drawn)
        for batch in self._fetched(with_positives):
            yield tuple(half for part in batch for half in part.chunk(2))

    def _partners(self, index: Tensor, key: int | str) -> Tensor:
        """Drawn for the global batch, so that ranks do not matter."""
        assert self.positives is not None
        generator = seeded_generator(self.plan.seed, "positive", key)
        return self.positives.of(index, torch.rand(self.plan.batch_size, generator=generator)[self.own])

    def _fetched(self, indices: Iterable[Tensor]) -> Iterator[Batch]:
        if self.resident is None:
            stream = getattr(self.source, "stream", None)  # a source with workers of its own
            for parts in self._read_ahead(indices) if stream is None else stream(indices):
                yield tuple(part.to(self.device, non_blocking=True) for part in parts)
            return
        for index in indices:
            on_device = index.to(self.device)
            yield tuple(part[on_device] for part in self.resident)

    def steps(self, first: int, last: int) -> Iterator[tuple[int, Batch]]:
        """(step, batch) for first <= step < last."""
        steps = range(first, last)
        return zip(steps, self.batches(map(self.own_indices, steps), steps), strict=True)

    def own_indices(self, step: int) -> Tensor:
        """This rank's samples of a step."""
        return self.plan.indices(step)[self.own]

    def _read_ahead(self, indices: Iterable[Tensor]) -> Iterator[Batch]:
        wanted, ahead = iter(indices), deque[Future[Batch]]()
        with ThreadPoolExecutor(self.readers, thread_name_prefix="flatclr-read-ahead") as pool:
            try:
                while True:
                    missing = self.read_ahead - len(ahead)
                    ahead.extend(pool.submit(self._read, index) for index in islice(wanted, missing))
                    if not ahead:
                        return
                    yield ahead.popleft().result()
            finally:
                for future in ahead:  # nobody waits for these any more
                    future.cancel()

    def _read(self, index: Tensor) -> Batch:
        read = self.source.batch(index)
        parts = (read,) if isinstance(read, Tensor) else read
        # pinned, so that the copy to the device waits for nothing
        return tuple(part.pin_memory() for part in parts) if self.device.type == "cuda" else parts
