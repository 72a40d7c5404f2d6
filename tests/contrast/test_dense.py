"""The kept tile: embeddings that are multiplied as they came give the numbers of exact products."""

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.contrast import dense
from tests.support.cuda import needs_cuda
from tests.support.harness import PAIRINGS, Batch

SQUARE = flatclr.Phi("square", value=lambda s: s * s, derivative=lambda s: 2 * s)


def gradients(z: list[Tensor], pairing: str, beta: Tensor | float, normalize: bool) -> tuple[Tensor, ...]:
    """Of a sum with a weight of its own for every anchor, in all outputs."""
    views = [x.detach().clone().requires_grad_() for x in z]
    options = {"pairing": pairing, "route": "dense", "normalize": normalize}
    stats = flatclr.contrast_stats(*views, inverse_temperature=beta, **options)  # type: ignore[arg-type]
    mean = flatclr.pairwise_mean(*views, phi=SQUARE, inverse_temperature=beta, **options)  # type: ignore[arg-type]
    weights = torch.randn(3, len(mean), generator=torch.Generator().manual_seed(1)).double().to(mean.device)
    total = (weights * torch.stack([stats.positive, stats.negative_logsumexp, mean])).sum()
    inputs = [*views, *([beta] if isinstance(beta, Tensor) else [])]
    gradients_of_inputs = torch.autograd.grad(total, inputs)
    return total.detach().cpu(), stats.ess.mean().cpu(), *(g.double().cpu() for g in gradients_of_inputs)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_bfloat16_multiplied_as_it_came_is_near_float64(
    pairing: str, normalize: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "LARGEST_EXACT", 0)  # as for a large tile
    z_a, z_b, _ = Batch.random(24, 20, pairing=pairing).tensors()
    rounded = [
        3 * z.detach().to(torch.bfloat16) if normalize else (z.detach() / 9).to(torch.bfloat16) for z in (z_a, z_b)
    ]
    for beta in (5.0, 40.0, torch.tensor(7.0, requires_grad=True)):
        got = gradients([z.to(device) for z in rounded], pairing, beta, normalize)
        want = gradients([z.double() for z in rounded], pairing, beta, normalize)
        for value, exact in zip(got[:2], want[:2], strict=True):
            assert abs(value - exact) <= 1e-4 * abs(exact)
        for mine, theirs in zip(got[2:], want[2:], strict=True):
            assert (mine - theirs).norm() <= 4e-3 * theirs.norm()


@pytest.mark.parametrize("apart", [1e-4, 0.0])
def test_the_weight_of_the_positive_is_not_rounded(apart: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near-aligned and collapsed embeddings: what pulls and what pushes nearly cancel."""
    monkeypatch.setattr(dense, "LARGEST_EXACT", 0)
    noise = torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(0))
    z = [x.to(torch.bfloat16) for x in torch.ones(96) + (2 * apart) ** 0.5 * noise]
    exact = [x.detach().double().requires_grad_() for x in z]
    views = [x.requires_grad_() for x in z]
    got, want = (torch.cat(torch.autograd.grad(flatclr.InfoNCE(0.1, route="dense")(*v), v)) for v in (views, exact))
    if apart:
        assert (got.double() - want).norm() <= 1e-2 * want.norm()
    else:
        assert got.norm() <= 1e-3
