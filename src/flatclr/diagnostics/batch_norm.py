"""Whether batch normalisation works: units that say nothing, and running statistics that are not those of the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

DEAD_STD = 1e-3  # of a unit's output, over the median of its layer


@dataclass(frozen=True)
class BatchNormHealth:
    """What batch normalisation does to a batch in evaluation mode.

    Args:
        dead_units: the share of units whose output does not vary, or is never positive, so that a ReLU takes all of it.
        statistics_gap: how far running statistics are from those of the batch in the layer where they are farthest, as
            the median over its units of |difference of means| / std + |log ratio of stds|; 0 where they agree.
    """

    dead_units: float
    statistics_gap: float


def batch_norm_health(network: nn.Module, *inputs: Tensor) -> BatchNormHealth | None:
    """Look at every batch normalisation of a network while it computes; the network is left as it is.

    Args:
        network: any module.
        inputs: what it is called with, a batch as it is trained on.

    Returns:
        Shares over all units, or None where there is no batch normalisation.

    >>> norm = torch.nn.BatchNorm1d(4)
    >>> with torch.no_grad():
    ...     _ = norm.bias[:1].fill_(-10)
    >>> batch_norm_health(norm, torch.randn(100, 4, generator=torch.Generator().manual_seed(0))).dead_units
    0.25
    """
    layers = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    dead, gaps = list[Tensor](), list[Tensor]()

    def look(layer: Any, given: tuple[Tensor, ...], made: Tensor) -> None:
        dead.append(_dead(_by_unit(made)))
        if layer.running_var is not None:
            gaps.append(_gap(layer, _by_unit(given[0])))

    with _evaluating(network), torch.no_grad():
        hooks = [layer.register_forward_hook(look) for layer in layers]
        try:
            network(*inputs)
        finally:
            for hook in hooks:
                hook.remove()
    if not dead:
        return None
    return BatchNormHealth(torch.cat(dead).float().mean().item(), torch.stack(gaps).max().item() if gaps else 0.0)


def _by_unit(values: Tensor) -> Tensor:
    return values.float().transpose(0, 1).flatten(1)


def _dead(out_UN: Tensor) -> Tensor:
    std_U = out_UN.std(1, correction=0)
    return (out_UN.amax(1) <= 0) | (std_U <= DEAD_STD * std_U.median())


def _gap(layer: Any, given_UN: Tensor) -> Tensor:
    var_U, mean_U = torch.var_mean(given_UN, 1, correction=0)
    own_U = layer.running_var.float() + layer.eps
    var_U = var_U + layer.eps
    shift_U = (mean_U - layer.running_mean.float()).abs() / torch.maximum(var_U, own_U).sqrt()
    gap: Tensor = (shift_U + 0.5 * (var_U / own_U).log().abs()).median()
    return gap


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
