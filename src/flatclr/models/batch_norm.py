"""A normalisation with what follows it in a residual block: one set of kernels where there can be one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatclr.accelerator import has_triton, triton_runs, with_triton

FUSED = "flatclr.models.fused_batch_norm"
TYPES = (torch.float32, torch.bfloat16, torch.float16)
LEAST_EAGER = 2**25  # values of a layer that keep an H200 busy for as long as the launches of its kernels take
_way = "by size"  # or "by PyTorch", or "fused"


@contextmanager
def by_pytorch() -> Iterator[None]:
    """Inside, every operation is PyTorch's own: to compare with, or for second derivatives.

    >>> with by_pytorch():
    ...     normalised(nn.BatchNorm2d(1), torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1)).flatten().round()
    tensor([0., 1.], grad_fn=<RoundBackward0>)
    """
    with _going("by PyTorch"):
        yield


@contextmanager
def for_capture() -> Iterator[None]:
    """Inside, layers of any size are fused: replayed from a CUDA graph, launches cost nothing. Not `by_pytorch`."""
    with _going("fused" if _way == "by size" else _way):
        yield


@contextmanager
def _going(way: str) -> Iterator[None]:
    global _way
    before, _way = _way, way
    try:
        yield
    finally:
        _way = before


def normalised(norm: nn.Module, x: Tensor, *, shortcut: Tensor | None = None, relu: bool = True) -> Tensor:
    """relu(norm(x) + shortcut).

    Args:
        norm: any normalisation of images.
        x: images of features [N, C, H, W].
        shortcut: to be added, of the same shape; None for nothing.
        relu: whether negative values become 0.

    Returns:
        As PyTorch's operations would, up to rounding. On CUDA, batch normalisation in training takes fewer passes over
        the values where they are stored channels last and many, or the step is captured. Second derivatives are refused
        of these.

    >>> normalised(nn.Identity(), torch.tensor([-1.0, 2.0]), shortcut=torch.tensor([0.0, 1.0]))
    tensor([0., 3.])
    """
    if fuses(norm, x, shortcut):
        fused: Tensor = with_triton(FUSED).batch_norm(norm, x, shortcut, relu=relu)
        return fused
    out: Tensor = norm(x)
    out = out if shortcut is None else out + shortcut
    return F.relu(out) if relu else out


def fuses(norm: nn.Module, x: Tensor, shortcut: Tensor | None) -> bool:
    """Whether the kernels take this: a layer that is watched, or whose statistics are shared, is called itself."""
    return (
        not torch.compiler.is_compiling()  # first: what comes after would be guards of a graph
        and type(norm) is nn.BatchNorm2d
        and norm.training
        and norm.affine
        and norm.weight.dtype == torch.float32
        and norm.momentum is not None
        and not (norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or norm._backward_pre_hooks)
        and _suits(x)
        and (norm.num_features, norm.weight.device) == (x.shape[1], x.device)
        and (shortcut is None or (_suits(shortcut) and _kind(shortcut) == _kind(x)))
        and x.numel() > x.shape[1]  # PyTorch refuses one value per channel
        and (_way == "fused" or (_way == "by size" and x.numel() >= LEAST_EAGER))
        and not torch._C._are_functorch_transforms_active()
        and _kernels_run(x.device)
    )


def _suits(x: Tensor) -> bool:
    plain = type(x) in (Tensor, nn.Parameter)
    return plain and x.dim() == 4 and x.dtype in TYPES and x.is_contiguous(memory_format=torch.channels_last)


def _kind(x: Tensor) -> tuple[object, ...]:
    return x.shape, x.dtype, x.device


def _kernels_run(device: torch.device) -> bool:
    return device.type == "cuda" and has_triton() and triton_runs(device, with_triton(FUSED).try_launch)
