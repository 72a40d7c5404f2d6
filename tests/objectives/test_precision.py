"""Low precision near alignment, where the positive dominates and InfoNCE's gradient is a small difference."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import flatclr

TEMPERATURE = 0.05


def near_aligned(pairs: int = 64, d: int = 128) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    z_a = F.normalize(torch.randn(pairs, d, generator=generator, dtype=torch.float64), dim=1)
    noise = F.normalize(torch.randn(pairs, d, generator=generator, dtype=torch.float64), dim=1)
    z_b = F.normalize(z_a + 0.1 * noise, dim=1)
    assert (z_a * z_b).sum(1).min() > 0.98
    return z_a, z_b


def gradient(objective: flatclr.Objective, dtype: torch.dtype) -> Tensor:
    z_a, z_b = (z.to(dtype).requires_grad_() for z in near_aligned())
    return torch.cat(torch.autograd.grad(objective(z_a, z_b), (z_a, z_b))).double()


def relative_error(objective: flatclr.Objective, dtype: torch.dtype) -> float:
    exact = gradient(objective, torch.float64)
    return ((gradient(objective, dtype) - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-2)], ids=str
)
def test_flat_nce_gradient_keeps_its_precision_near_alignment(dtype: torch.dtype, bound: float, route: str) -> None:
    flat = relative_error(flatclr.FlatNCE(TEMPERATURE, route=route), dtype)
    info = relative_error(flatclr.InfoNCE(TEMPERATURE, route=route), dtype)
    print(f"{dtype}: relative gradient error FlatNCE {flat:.1e}, InfoNCE {info:.1e}")
    assert flat < bound


def test_info_nce_gradient_does_not_cancel_where_cross_entropy_does(route: str) -> None:
    """softplus(gap) never forms P - 1; a materialised cross-entropy in float32 does."""
    z_a, z_b = (z.float().requires_grad_() for z in near_aligned())
    z = F.normalize(torch.cat([z_a, z_b]), dim=1)
    scores = (z @ z.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    plain = F.cross_entropy(scores, torch.arange(128).roll(64))
    plain_gradient = torch.cat(torch.autograd.grad(plain, (z_a, z_b))).double()
    exact = gradient(flatclr.InfoNCE(TEMPERATURE, route=route), torch.float64)
    ours = relative_error(flatclr.InfoNCE(TEMPERATURE, route=route), torch.float32)
    assert ours < 1e-5
    assert (plain_gradient - exact).norm() / exact.norm() > 20 * ours


def test_a_loss_below_float32_resolution_is_not_zero() -> None:
    stats = flatclr.stats_from_scores(20 * torch.eye(2, 2))
    torch.testing.assert_close(stats.info_nce, torch.full((2,), 2.0611536e-9), rtol=1e-5, atol=0)
