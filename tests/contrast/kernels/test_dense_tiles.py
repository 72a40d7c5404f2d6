"""A kept tile of wide bfloat16 rows, made ready by the fused kernels: the numbers of exact products."""

import pytest
import torch

import flatclr
from flatclr.contrast.dense import logsumexp_kept
from flatclr.contrast.kernels import kernels_of
from tests.support.harness import PAIRINGS
from tests.support.interpreter import interpreted

pytest.importorskip("triton")
pytestmark = interpreted


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_kernels_make_a_kept_tile_ready(pairing: str, normalize: bool) -> None:
    z = torch.randn(2, 9, 20).bfloat16()
    found = []
    for kernels in (None, kernels_of("fused")):
        views = [x.clone().requires_grad_() for x in z]
        scale = torch.tensor(2.0, requires_grad=True)
        pairs = flatclr.PairSet.of(*views, pairing=pairing, normalize=normalize)
        positive, logsumexp, gap, _ = logsumexp_kept(pairs, scale, kernels)
        total = (positive + 2 * logsumexp).mul(torch.arange(len(gap))).sum() + gap.sum()
        found.append([total.detach(), *torch.autograd.grad(total, [*views, scale])])
    for exact, mine in zip(*found, strict=True):
        assert (mine.double() - exact.double()).norm() <= 1e-2 * exact.double().norm()
