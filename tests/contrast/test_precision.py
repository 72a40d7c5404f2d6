"""How far the gradient of each route is from float64 on the same rounded embeddings: temperatures, batches, shapes.

Rounding a unit row to half precision moves it by more than the rows of a collapsed batch differ, so the kernels that
multiply in half precision take rows as they came. The gradient of the positive is never subtracted in half precision.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.contrast.kernels import strips, tiled_torch
from tests.support.interpreter import interpreted, use_tiles

pytest.importorskip("triton")

from flatclr.contrast.kernels import fused_triton, strips_triton

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
TEMPERATURES = (0.02, 0.1, 1.0)
BATCHES = ("random", "aligned", "collapsed")
HALVES = (torch.bfloat16, torch.float16)
ROUTES = {
    "dense": {"route": "dense"},
    "streamed": {"route": "streamed"},
    "strips in torch": {"route": "strips", "backend": "torch"},
    "fused": {"route": "fused"},
    "strips": {"route": "strips", "backend": "triton"},
}


def views_of(batch: str, pairs: int, d: int, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Two views: apart; with 1 - cos = 1e-4 between positives; with 1 - cos = 1e-4 between any two rows."""
    generator = torch.Generator().manual_seed(1)
    a, noise, other = torch.randn(3, pairs, d, generator=generator, dtype=torch.float64).unbind()
    if batch == "aligned":
        noise = noise / noise.norm(dim=1, keepdim=True) * a.norm(dim=1, keepdim=True)
        other = a + math.sqrt(2e-4) * noise
    elif batch == "collapsed":
        centre = torch.randn(1, d, generator=generator, dtype=torch.float64)
        a, other = centre + 1e-2 * a, centre + 1e-2 * other
    return [z.to(device, dtype) for z in (a, other)]


def gradient(views: list[Tensor], objective: flatclr.Objective) -> Tensor:
    """Scaled as a training step would: float16 cannot hold the small gradients of a mean."""
    leaves = [view.detach().requires_grad_() for view in views]
    return torch.cat(torch.autograd.grad(2**12 * objective(*leaves), leaves)).double()


def error(views: list[Tensor], temperature: float, pairing: str, **options: str) -> float:
    """Of a FlatNCE gradient, relative to its norm."""
    exact = gradient([view.double() for view in views], flatclr.FlatNCE(temperature, pairing=pairing, route="streamed"))
    found = gradient(views, flatclr.FlatNCE(temperature, pairing=pairing, **options))  # type: ignore[arg-type]
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("route", ROUTES)
class TestOnTheCpu:
    pytestmark = interpreted

    @pytest.fixture(autouse=True)
    def _small_tiles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        use_tiles(monkeypatch, fused_triton.Tiling(32, 32, 4, 2))
        small = strips_triton.Tiling(32, 32, 32, warps=4, stages=2, group=2)
        for table in (strips_triton.SUMS_TILING, strips_triton.WEIGHTS_TILING):
            for itemsize in (2, 4):
                monkeypatch.setitem(table, itemsize, small)
        monkeypatch.setattr(strips, "STRIP_BYTES", 4096)
        monkeypatch.setattr(tiled_torch, "tile_edge", lambda device: 32)

    @pytest.mark.parametrize("batch", BATCHES)
    @pytest.mark.parametrize("dtype", HALVES, ids=str)
    def test_the_gradient_is_near_float64(self, batch: str, dtype: torch.dtype, route: str) -> None:
        views = views_of(batch, 39, 40, dtype)
        for temperature in (0.02, 1.0):
            assert error(views, temperature, "cross", **ROUTES[route]) < 1e-2


class TestOnAGpu:
    pytestmark = on_gpu

    @pytest.mark.parametrize("batch", BATCHES)
    @pytest.mark.parametrize("dtype", HALVES, ids=str)
    def test_the_gradient_is_near_float64_and_as_near_as_that_of_fused_kernels(
        self, batch: str, dtype: torch.dtype
    ) -> None:
        rounding = torch.finfo(dtype).eps / 2  # of a weight: where all are alike, all are rounded alike
        for temperature in TEMPERATURES:
            for pairing in ("cross", "two_view"):
                for d in (128, 100, 770):
                    views = views_of(batch, 1021, d, dtype, "cuda")
                    fused = error(views, temperature, pairing, route="fused")
                    assert fused < 1e-2
                    limit = min(1e-2, 1.5 * max(fused, rounding))
                    for route in ("strips", "streamed", "auto"):
                        found = error(views, temperature, pairing, route=route)
                        assert found < limit, (temperature, pairing, d, route, found, fused)
