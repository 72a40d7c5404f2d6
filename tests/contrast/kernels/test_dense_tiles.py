"""A kept tile of wide bfloat16 rows, made ready by the fused kernels: the numbers of exact products."""

import pytest
import torch

import flatclr
from flatclr.contrast import dense
from flatclr.contrast.kernels import kernels_of
from tests.support.harness import PAIRINGS
from tests.support.interpreter import interpreted

pytest.importorskip("triton")
pytestmark = interpreted


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_kernels_make_a_kept_tile_ready(pairing: str, normalize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    z = torch.randn(2, 9, 20).bfloat16()
    found = []
    for kernels in (None, kernels_of("fused")):
        monkeypatch.setattr(dense, "_kernels_of", lambda batch, kernels=kernels: kernels)
        views = [x.clone().requires_grad_() for x in z]
        scale = torch.tensor(2.0, requires_grad=True)
        stats = flatclr.contrast_stats(
            *views, inverse_temperature=scale, pairing=pairing, normalize=normalize, route="dense"
        )
        total = (stats.positive + 2 * stats.negative_logsumexp).mul(
            torch.arange(len(stats.gap))
        ).sum() + stats.gap.sum()
        found.append([total.detach(), *torch.autograd.grad(total, [*views, scale])])
    for exact, mine in zip(*found, strict=True):
        assert (mine.double() - exact.double()).norm() <= 1e-2 * exact.double().norm()
