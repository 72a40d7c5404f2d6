"""A large batch through a small memory (gradient caching, Gao et al. 2021).

Embeddings of all micro-batches are made without a graph, the loss of the whole batch gives the gradient of every
embedding, and each micro-batch is encoded once more to carry its part of it back. The gradient is that of the whole
batch, exactly, as long as no layer mixes samples; batch normalisation goes by its micro-batch instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatclr.models.network import device_of
from flatclr.models.statistics import frozen_running_statistics, one_update_of_running_statistics

Embed = Callable[[slice], tuple[Tensor, ...]]  # of every view that needs a gradient
RandomState = tuple[Tensor, Tensor | None]


def micro_batches(rows: int, at_once: int | None) -> list[slice]:
    """
    >>> micro_batches(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = rows if at_once is None else at_once
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


@dataclass(frozen=True)
class CachedEmbeddings:
    """Embeddings of a whole batch, as leaves, and what it takes to carry their gradients back."""

    network: nn.Module  # perhaps inside DistributedDataParallel
    embed: Embed
    parts: Sequence[slice]
    random_states: Sequence[RandomState]
    embeddings: tuple[Tensor, ...]

    @classmethod
    def of(cls, network: nn.Module, embed: Embed, parts: Sequence[slice]) -> CachedEmbeddings:
        """Encode part by part without a graph; running statistics are left for `carry_back` to update."""
        device = device_of(network)
        encoded, random_states = [], []
        with torch.no_grad(), frozen_running_statistics(network):
            for rows in parts:
                random_states.append(_random_state(device))
                encoded.append(embed(rows))
        embeddings = tuple(torch.cat(view).requires_grad_() for view in zip(*encoded, strict=True))
        return cls(network, embed, parts, random_states, embeddings)

    def carry_back(self) -> None:
        """After the loss went backward: add every part's share to the parameters. Ranks meet in the last part only."""
        device = self.embeddings[0].device
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            one_update_of_running_statistics(self.network, len(self.parts)),
        ):
            for rows, state in zip(self.parts, self.random_states, strict=True):
                with nullcontext() if rows is self.parts[-1] else _on_its_own(self.network):
                    _set_random_state(state, device)  # the same dropout as in the first pass
                    views = zip(self.embed(rows), self.embeddings, strict=True)
                    reached = [(z, leaf.grad[rows]) for z, leaf in views if leaf.grad is not None]
                    torch.autograd.backward([z for z, _ in reached], [g for _, g in reached])


def _on_its_own(network: nn.Module) -> AbstractContextManager[Any]:
    return network.no_sync() if isinstance(network, nn.parallel.DistributedDataParallel) else nullcontext()


def _random_state(device: torch.device) -> RandomState:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: RandomState, device: torch.device) -> None:
    host, on_device = state
    torch.set_rng_state(host)
    if on_device is not None:
        torch.cuda.set_rng_state(on_device, device)
