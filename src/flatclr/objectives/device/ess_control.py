"""Device code of `flatclr.objectives.ess_control`: a call noted, and a step of the rule, in one launch each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from flatclr.objectives.ess_control import FAR, GROWTH, PATIENCE


@triton.jit
def note_kernel(mean_ptr, noted_ess_ptr, noted_calls_ptr):
    """Add a mean ESS and its call to the sums; one that is NaN adds nothing."""
    mean = tl.load(mean_ptr).to(tl.float32)
    says = mean == mean
    tl.store(noted_ess_ptr, tl.load(noted_ess_ptr) + tl.where(says, mean, 0.0))
    tl.store(noted_calls_ptr, tl.load(noted_calls_ptr) + says.to(tl.float32))


@triton.jit
def step_kernel(
    noted_ess_ptr,
    noted_calls_ptr,
    beta_ptr,
    target_ptr,
    stride_ptr,
    run_ptr,
    at_bound_ptr,
    collapsed_ptr,
    clamped_steps_ptr,
    collapsed_steps_ptr,
    rate,
    fastest,
    minimum,
    maximum,
    far_share: tl.constexpr,
    growth: tl.constexpr,
    patience: tl.constexpr,
):
    """beta *= 1 + stride if the noted mean > target else 1 - stride, clamped; then the alarms. No calls, no step."""
    ess, calls = tl.load(noted_ess_ptr), tl.load(noted_calls_ptr)
    if calls > 0:
        target, stride, run = tl.load(target_ptr), tl.load(stride_ptr), tl.load(run_ptr)
        error = ess - target * calls
        upwards = tl.where(error > 0, 1.0, -1.0)
        far = tl.abs(error) > far_share * tl.minimum(target, 1 - target) * calls
        turned = run * upwards < 0
        run = tl.where(far, tl.where(turned, upwards, run + upwards), 0.0)
        longer = tl.where(tl.abs(run) > patience, tl.minimum(stride * growth, fastest), stride)
        stride = tl.where(far, tl.where(turned, tl.maximum(stride / 2, rate), longer), rate)
        beta = tl.minimum(tl.maximum(tl.load(beta_ptr) * (1 + upwards * stride), minimum), maximum)
        at_top = beta >= maximum
        at_bound = at_top | (beta <= minimum)
        collapsed = at_top & (ess > calls * ((1 + target) / 2))
        tl.store(run_ptr, run)
        tl.store(stride_ptr, stride)
        tl.store(beta_ptr, beta)
        tl.store(at_bound_ptr, at_bound)
        tl.store(collapsed_ptr, collapsed)
        tl.store(clamped_steps_ptr, tl.load(clamped_steps_ptr) + at_bound.to(tl.int64))
        tl.store(collapsed_steps_ptr, tl.load(collapsed_steps_ptr) + collapsed.to(tl.int64))
        tl.store(noted_ess_ptr, 0.0)
        tl.store(noted_calls_ptr, 0.0)


def note(mean: Tensor, noted_ess: Tensor, noted_calls: Tensor) -> None:
    """Keep the ESS of a call for the next step."""
    with torch.cuda.device_of(mean):
        note_kernel[(1,)](mean, noted_ess, noted_calls, num_warps=1)


def step(buffers: tuple[Tensor, ...], rate: float, fastest: float, minimum: float, maximum: float) -> None:
    """One step of the buffers of an `EssControl`: sums, beta, target, stride, run, alarms, counts."""
    with torch.cuda.device_of(buffers[0]):
        step_kernel[(1,)](*buffers, rate, fastest, minimum, maximum, FAR, GROWTH, PATIENCE, num_warps=1)


def try_launch(device: torch.device) -> None:
    """Raises whatever keeps the kernels from running there."""
    ones, alarms = torch.ones(6, device=device), torch.zeros(2, device=device, dtype=torch.bool)
    counts = torch.zeros(2, device=device, dtype=torch.long)
    note(ones[2], ones[0], ones[1])
    step((*ones.unbind(), *alarms.unbind(), *counts.unbind()), 0.01, 0.15, 0.5, 2.0)
