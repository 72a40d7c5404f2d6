"""A slowly moving copy of a network, for keys of a queue (He et al. 2020)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from flatclr.checks import require_number


class MomentumEncoder(nn.Module):
    """A copy that follows: after each `update()`, copy = momentum copy + (1 - momentum) source; buffers are copied.

    The copy needs no gradient and gives none. Nothing waits for the device, and the step size is a tensor, so `update`
    may be captured in a CUDA graph and `momentum` set between replays. The state dict holds the copy and the step size.

    Wrap the bare network, before DistributedDataParallel. Keep parameters in float32 (autocast does): bfloat16 cannot
    hold steps of one per cent.

    Args:
        module: what is followed.
        momentum: within [0, 1]; 0.99 to 0.999 is usual.

    >>> source = torch.nn.Linear(2, 1)
    >>> follower = MomentumEncoder(source, momentum=0.9)
    >>> follower.update()
    >>> torch.equal(follower(torch.ones(1, 2)), source(torch.ones(1, 2)))
    True
    """

    step_size: Tensor

    def __init__(self, module: nn.Module, momentum: float = 0.99) -> None:
        super().__init__()
        self.module = copy.deepcopy(module).requires_grad_(False)
        self._source = (module,)  # in a tuple, so that it is no submodule: its parameters are not this copy's
        device = next((parameter.device for parameter in module.parameters()), None)
        self.register_buffer("step_size", torch.tensor(0.0, device=device))
        self.momentum = momentum

    @property
    def momentum(self) -> float:
        """A read waits for the device; setting does not."""
        return 1 - self.step_size.item()

    @momentum.setter
    def momentum(self, value: float) -> None:
        require_number("momentum", value, advice="0.99 to 0.999 is usual.")
        if not 0 <= value <= 1:
            raise ValueError(f"momentum must be within [0, 1], got {value:g}; 0.99 to 0.999 is usual.")
        self.step_size.fill_(1 - value)

    @torch.no_grad()
    def update(self) -> None:
        """One step towards the source."""
        (source,) = self._source
        copies: list[Tensor] = list(self.module.parameters())
        targets: list[Tensor] = list(source.parameters())
        if copies:
            steps = torch._foreach_sub(targets, copies)
            torch._foreach_mul_(steps, self.step_size)
            torch._foreach_add_(copies, steps)
        if buffers := list(self.module.buffers()):
            torch._foreach_copy_(buffers, list(source.buffers()))

    @torch.no_grad()
    def forward(self, *inputs: Any, **options: Any) -> Any:
        """What the copy makes of the inputs, without gradient."""
        return self.module(*inputs, **options)
