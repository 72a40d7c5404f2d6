"""What a network costs: parameters, and multiplications an image."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from flatclr.models.network import device_of


def parameters(module: nn.Module) -> int:
    """How many numbers training changes.

    >>> parameters(torch.nn.Linear(3, 2))
    8
    """
    return sum(weight.numel() for weight in module.parameters() if weight.requires_grad)


def multiply_adds(module: nn.Module, images: Tensor) -> int:
    """Multiplications with an addition each in the linear and convolution layers that these images go through.

    >>> multiply_adds(torch.nn.Conv2d(3, 8, 3, padding=1), torch.zeros(1, 3, 10, 10))
    21600
    """
    counted = 0

    def count(layer: Any, _inputs: Any, output: Tensor) -> None:
        nonlocal counted
        counted += output.numel() * layer.weight[0].numel()  # every output is a sum over one row of weights

    layers = [m for m in module.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)]
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        module(images.to(device_of(module)))
    finally:
        for handle in handles:
            handle.remove()
    return counted
