"""The kept tile: embeddings that are multiplied as they came give the numbers of exact products."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import flatclr
from flatclr.contrast.dense import logsumexp_kept, mean_phi_kept
from flatclr.contrast.kernels import Kernels, kernels_of
from tests.support.cuda import needs_cuda
from tests.support.harness import PAIRINGS, Batch

SQUARE = flatclr.Phi("square", value=lambda s: s * s, derivative=lambda s: 2 * s)
DEVICES = [("cpu", "strips_torch"), pytest.param("cuda", "fused", marks=needs_cuda)]


def gradients(
    z: list[Tensor], pairing: str, beta: Tensor | float, normalize: bool, kernels: Kernels | None
) -> tuple[Tensor, ...]:
    """Of a sum with a weight of its own for every anchor, in all outputs."""
    views = [x.detach().clone().requires_grad_() for x in z]
    pairs = flatclr.PairSet.of(*views, pairing=pairing, normalize=normalize)
    scale = pairs.scale(beta)
    positive, logsumexp, _, measure_ess = logsumexp_kept(pairs, scale, kernels)
    _, mean = mean_phi_kept(pairs, scale, SQUARE, kernels)
    weights = torch.randn(3, len(mean), generator=torch.Generator().manual_seed(1)).double().to(mean.device)
    total = (weights * torch.stack([positive, logsumexp, mean])).sum()
    inputs = [*views, *([beta] if isinstance(beta, Tensor) else [])]
    gradients_of_inputs = torch.autograd.grad(total, inputs)
    return total.detach().cpu(), measure_ess().mean().cpu(), *(g.double().cpu() for g in gradients_of_inputs)


@pytest.mark.parametrize(("device", "kernels"), DEVICES)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_bfloat16_multiplied_as_it_came_is_near_float64(
    pairing: str, normalize: bool, device: str, kernels: str
) -> None:
    z_a, z_b, _ = Batch.random(24, 20, pairing=pairing).tensors()
    rounded = [
        3 * z.detach().to(torch.bfloat16) if normalize else (z.detach() / 9).to(torch.bfloat16) for z in (z_a, z_b)
    ]
    for beta in (5.0, 40.0, torch.tensor(7.0, requires_grad=True)):
        got = gradients([z.to(device) for z in rounded], pairing, beta, normalize, kernels_of(kernels))
        want = gradients([z.double() for z in rounded], pairing, beta, normalize, None)
        for value, exact in zip(got[:2], want[:2], strict=True):
            assert abs(value - exact) <= 1e-4 * abs(exact)
        for mine, theirs in zip(got[2:], want[2:], strict=True):
            assert (mine - theirs).norm() <= 4e-3 * theirs.norm()


@pytest.mark.parametrize("apart", [1e-4, 0.0])
def test_the_weight_of_the_positive_is_not_rounded(apart: float) -> None:
    """Near-aligned and collapsed embeddings: what pulls and what pushes nearly cancel."""
    noise = torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(0))
    z = [x.to(torch.bfloat16) for x in torch.ones(96) + (2 * apart) ** 0.5 * noise]
    found = []
    for dtype, kernels in ((torch.bfloat16, kernels_of("strips_torch")), (torch.float64, None)):
        views = [x.to(dtype).requires_grad_() for x in z]
        gap = logsumexp_kept(flatclr.PairSet.of(*views), 10.0, kernels)[2]
        found.append(torch.cat(torch.autograd.grad(F.softplus(gap).mean(), views)).double())
    got, want = found
    if apart:
        assert (got - want).norm() <= 1e-2 * want.norm()
    else:
        assert got.norm() <= 1e-3
