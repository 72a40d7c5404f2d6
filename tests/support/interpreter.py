"""Fused kernels on the CPU, through Triton's interpreter."""

from typing import Any

import pytest
import torch
from torch import Tensor

import flatclr
from tests.support.harness import Batch

pytest.importorskip("triton")

from flatclr.contrast.kernels import fused_triton
from flatclr.contrast.kernels.fused_triton import Tiling

interpreted = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="with a CUDA device the kernels are compiled: see test_gpu"),
    pytest.mark.filterwarnings("ignore:overflow encountered in exp2"),  # of pairs that do not count,
    pytest.mark.filterwarnings("ignore:invalid value encountered in multiply"),  # times a weight of 0
]


def assert_near(got: Tensor, want: Tensor, relative: float) -> None:
    """Near in relation to its norm, or to 10 where it is 0 (nothing moves on the sphere of one dimension)."""
    norm = want.double().norm()
    assert got.isfinite().all()
    assert (got.double() - want.double()).norm() <= relative * torch.where(norm > 1e-9, norm, 10)


def weighted_stats(
    batch: Batch, beta: float | Tensor, backend: str, dtype: torch.dtype, **options: Any
) -> tuple[Tensor, ...]:
    """Every field of the stats, and gradients of a sum with a different weight on every output of every anchor."""
    z_a, z_b, queue = batch.tensors(dtype)
    scale = beta.detach().clone().to(dtype).requires_grad_() if isinstance(beta, Tensor) else beta
    stats = flatclr.contrast_stats(
        z_a, z_b, inverse_temperature=scale, negatives=queue, backend=backend, **batch.options(), **options
    )
    weights = torch.randn(2, len(stats.positive), generator=torch.Generator().manual_seed(7)).double()
    total = (weights[0] * stats.positive + weights[1] * stats.negative_logsumexp).sum()
    inputs = [z_a, z_b, *([scale] if isinstance(scale, Tensor) else [])]
    gradients = torch.autograd.grad(total, inputs)
    return stats.positive.detach(), stats.negative_logsumexp.detach(), stats.ess, *gradients


def use_tiles(monkeypatch: pytest.MonkeyPatch, tiling: Tiling) -> None:
    for name in ("sums_tiling", "mirrored_tiling", "gradients_tiling"):
        monkeypatch.setattr(fused_triton, name, lambda features, itemsize, device: tiling)
