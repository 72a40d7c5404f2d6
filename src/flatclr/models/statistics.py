"""Statistics of batch normalisation: held, moved, or measured again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def mixes_samples(network: nn.Module) -> bool:
    """Whether batch normalisation makes a sample's embedding depend on the rest of its batch."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules())


def tracking(network: nn.Module) -> list[Any]:
    """The normalisations whose running statistics move in training."""
    return [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]


@contextmanager
def frozen_running_statistics(network: nn.Module) -> Iterator[None]:
    """Batch normalisation goes by the batch as in training, but its running statistics stay as they are."""
    held = tracking(network)
    for module in held:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in held:
            module.track_running_stats = True


@contextmanager
def one_update_of_running_statistics(network: nn.Module, parts: int) -> Iterator[None]:
    """Several micro-batches move the running statistics as far as one batch would, and count as one."""
    moved = [m for m in tracking(network) if m.momentum is not None]
    momenta = [m.momentum for m in moved]
    counts = [m.num_batches_tracked + 1 for m in moved if m.num_batches_tracked is not None]
    for module in moved:
        module.momentum = 1 - (1 - module.momentum) ** (1 / parts)
    try:
        yield
    finally:
        for module, momentum in zip(moved, momenta, strict=True):
            module.momentum = momentum
        for module, count in zip(moved, counts, strict=False):
            module.num_batches_tracked.copy_(count)


@contextmanager
def statistics_of(encoder: nn.Module, batches: Iterable[Tensor]) -> Iterator[None]:
    """For a while, batch normalisation goes by the mean statistics of these batches, not by those of training.

    Each layer is measured on what the layers before it give when they go by the same batch, as in training. No process
    waits for another.

    >>> norm = nn.BatchNorm1d(1)
    >>> with statistics_of(norm, [torch.tensor([[1.0], [3.0]])]):
    ...     float(norm.running_mean), float(norm.running_var)
    (2.0, 1.0)
    >>> float(norm.running_mean)
    0.0
    """
    measured = [m for m in tracking(encoder) if m.running_mean is not None]
    kept = [(m, m.running_mean.clone(), m.running_var.clone()) for m in measured]
    try:
        _measure(encoder, measured, batches)
        yield
    finally:
        for module, mean, variance in kept:
            module.running_mean.copy_(mean)
            module.running_var.copy_(variance)


@torch.no_grad()
def _measure(encoder: nn.Module, measured: list[Any], batches: Iterable[Tensor]) -> None:
    sums = {
        module: [torch.zeros_like(module.running_mean), torch.zeros_like(module.running_var)] for module in measured
    }

    def note(module: Any, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].float().transpose(0, 1).flatten(1)
        variance, mean = torch.var_mean(x, dim=1, correction=0)
        module.running_mean.copy_(mean)  # in evaluation mode the layer goes by these at once
        module.running_var.copy_(variance)
        sums[module][0] += mean
        sums[module][1] += variance

    modes = [(module, module.training) for module in encoder.modules()]
    hooks = [module.register_forward_pre_hook(note) for module in measured]
    count = 0
    try:
        encoder.eval()
        for batch in batches if measured else ():
            encoder(batch)
            count += 1
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training
    for module in measured:
        module.running_mean.copy_(sums[module][0] / count)
        module.running_var.copy_(sums[module][1] / count)
