"""Device code of `flatclr.objectives.ess_control`: a step of the rule in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def step_kernel(
    mean_ptr,
    beta_ptr,
    target_ptr,
    at_bound_ptr,
    collapsed_ptr,
    clamped_steps_ptr,
    collapsed_steps_ptr,
    up,
    down,
    minimum,
    maximum,
):
    """beta *= up if mean > target else down, clamped; a mean that is NaN moves nothing. Then the alarms."""
    mean = tl.load(mean_ptr).to(tl.float32)
    target = tl.load(target_ptr)
    factor = tl.where(mean > target, up, tl.where(mean <= target, down, 1.0))
    beta = tl.minimum(tl.maximum(tl.load(beta_ptr) * factor, minimum), maximum)
    at_top = beta >= maximum
    at_bound = at_top | (beta <= minimum)
    collapsed = at_top & (mean > (1 + target) / 2)
    tl.store(beta_ptr, beta)
    tl.store(at_bound_ptr, at_bound)
    tl.store(collapsed_ptr, collapsed)
    tl.store(clamped_steps_ptr, tl.load(clamped_steps_ptr) + at_bound.to(tl.int64))
    tl.store(collapsed_steps_ptr, tl.load(collapsed_steps_ptr) + collapsed.to(tl.int64))


def step(mean: Tensor, buffers: tuple[Tensor, ...], up: float, down: float, minimum: float, maximum: float) -> None:
    """One step of the buffers of an `EssControl`: beta, target, both alarms and their counts."""
    with torch.cuda.device_of(mean):
        step_kernel[(1,)](mean, *buffers, up, down, minimum, maximum, num_warps=1)


def try_launch(device: torch.device) -> None:
    """Raises whatever keeps the kernel from running there."""
    one, no, none = (torch.ones((), device=device), *torch.zeros(2, 2, device=device, dtype=torch.bool).unbind())
    counts = torch.zeros(2, device=device, dtype=torch.long)
    step(one, (one.clone(), one.clone(), no[0], none[0], counts[0], counts[1]), 1.0, 1.0, 0.5, 2.0)
