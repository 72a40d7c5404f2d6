"""How far the gradient of each route is from float64 on the same rounded embeddings: temperatures, batches, shapes.

Rounding a unit row to half precision moves it by more than the rows of a collapsed batch differ, so the kernels that
multiply in half precision take rows as they came. The gradient of the positive is never subtracted in half precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.contrast import route as contrast_route
from flatclr.contrast.kernels import strips, tiled_torch
from tests.support.interpreter import interpreted, use_tiles

pytest.importorskip("triton")

from flatclr.contrast.kernels import fused_triton, strips_triton

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
TEMPERATURES = (0.02, 0.1, 1.0)
BATCHES = ("random", "aligned", "collapsed")
HALVES = (torch.bfloat16, torch.float16)
KINDS = (flatclr.FlatNCE, flatclr.InfoNCE)
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


def gradient(views: list[Tensor], objective: flatclr.Objective, scale: float = 1.0, **given: Tensor) -> Tensor:
    leaves = [view.detach().requires_grad_() for view in views]
    return torch.cat(torch.autograd.grad(scale * objective(*leaves, **given), leaves)).double()


def error(
    views: list[Tensor],
    temperature: float,
    pairing: str,
    kind: type[flatclr.Objective] = flatclr.FlatNCE,
    given: Mapping[str, Tensor] = MappingProxyType({}),
    **options: str,
) -> float:
    """Of a gradient, relative to its norm. The loss is scaled as a training step would: float16 has no tiny numbers."""
    doubles = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    exactly = kind(temperature, pairing=pairing, route="streamed")  # type: ignore[call-arg]
    exact = gradient([view.double() for view in views], exactly, **doubles)
    scale = 2.0 ** -math.ceil(math.log2(exact.abs().max()))
    found = gradient(views, kind(temperature, pairing=pairing, **options), scale, **given) / scale  # type: ignore[call-arg]
    return float((found - exact).norm() / exact.norm())


def relation_of(name: str, views: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Views, and what is said of them: relations whose positives and negatives are summed apart from each other."""
    (a, b), generator = views, torch.Generator().manual_seed(1)
    samples = len(a)
    labels = torch.randint(5, (samples,), generator=generator).to(a.device)
    ids = torch.randint(samples, (samples,), generator=generator).to(a.device)
    queue = {"negatives": b.roll(3, 0), "negative_labels": labels.flip(0), "negative_ids": ids.flip(0)}
    hard = b.roll(5, 0).unsqueeze(1)
    return {
        "labels": (views, {"labels": labels}),
        "three views": ([a, b, (a + b) / 2], {}),
        "everything": (views, {"labels": labels, "ids": ids, "hard_negatives": hard, **queue}),
    }[name]


RELATIONS = ("labels", "three views", "everything")


@pytest.fixture
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiles(monkeypatch, fused_triton.Tiling(32, 32, 4, 2))
    small = strips_triton.Tiling(32, 32, 32, warps=4, stages=2, group=2)
    for table in (strips_triton.SUMS_TILING, strips_triton.WEIGHTS_TILING):
        for itemsize in (2, 4):
            monkeypatch.setitem(table, itemsize, small)
    monkeypatch.setattr(strips, "STRIP_BYTES", 4096)
    monkeypatch.setattr(tiled_torch, "tile_edge", lambda device: 32)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("route", ROUTES)
class TestOnTheCpu:
    pytestmark = interpreted

    @pytest.mark.parametrize("batch", BATCHES)
    @pytest.mark.parametrize("dtype", HALVES, ids=str)
    def test_the_gradient_is_near_float64(self, batch: str, dtype: torch.dtype, route: str) -> None:
        views = views_of(batch, 39, 40, dtype)
        for temperature, kind in product((0.02, 1.0), KINDS):
            assert error(views, temperature, "cross", kind, **ROUTES[route]) < 1e-2, (temperature, kind)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("route", [name for name in ROUTES if name != "fused"])  # which takes two views alone
class TestRelationsOnTheCpu:
    pytestmark = interpreted

    @pytest.mark.parametrize("batch", BATCHES)
    @pytest.mark.parametrize("dtype", HALVES, ids=str)
    def test_the_gradient_of_any_relation_is_near_float64(self, batch: str, dtype: torch.dtype, route: str) -> None:
        """Parts of a loss that all but cancel are not rounded to few bits before they are added up."""
        kinds = KINDS if route != "strips" else KINDS[:1]  # interpreted kernels take seconds
        for relation, kind in product(RELATIONS if route != "strips" else RELATIONS[:1], kinds):
            views, given = relation_of(relation, views_of(batch, 67, 40, dtype))
            found = error(views, 0.1, "two_view", kind, given, **ROUTES[route])
            assert found < 5e-3, (relation, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", BATCHES)
def test_labels_of_many_rows_are_near_float64_by_strips(batch: str, kind: type[flatclr.Objective]) -> None:
    """Weights of a collapsed batch, all rounded alike, put InfoNCE off by 1.2 %: many positives cancel all the rest."""
    views, given = relation_of("labels", views_of(batch, 1021, 32, torch.bfloat16))
    assert error(views, 0.1, "two_view", kind, given, route="strips", backend="torch") < 7e-3


def test_a_tile_that_is_multiplied_in_bfloat16_is_near_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrast_route, "LARGEST_EXACT", 0)
    for batch, temperature, kind in product(BATCHES, TEMPERATURES, KINDS):
        views = views_of(batch, 39, 40, torch.bfloat16)
        assert error(views, temperature, "cross", kind, route="dense") < 1e-2, (batch, temperature, kind)


class TestOnAGpu:
    pytestmark = on_gpu

    @pytest.mark.parametrize("batch", BATCHES)
    @pytest.mark.parametrize("dtype", HALVES, ids=str)
    def test_the_gradient_is_near_float64_and_as_near_as_that_of_fused_kernels(
        self, batch: str, dtype: torch.dtype
    ) -> None:
        # where all rows are alike, all weights are, and all are rounded alike
        rounding = torch.finfo(dtype).eps / 2 if batch == "collapsed" else 0.0
        for temperature, pairing, kind in product(TEMPERATURES, ("cross", "two_view"), KINDS):
            fused = error(views_of(batch, 1021, 128, dtype, "cuda"), temperature, pairing, kind, route="fused")
            limit = min(1e-2, 1.5 * max(fused, rounding))
            for d in (128, 100, 770):
                views = views_of(batch, 1021, d, dtype, "cuda")
                for route, options in {**ROUTES, "auto": {}}.items():
                    found = error(views, temperature, pairing, kind, **options)
                    assert found < limit, (temperature, pairing, kind, d, route, found, fused)

    @pytest.mark.parametrize("batch", BATCHES)
    @pytest.mark.parametrize("dtype", HALVES, ids=str)
    def test_the_gradient_of_any_relation_is_near_float64(self, batch: str, dtype: torch.dtype) -> None:
        for relation, kind, d in product(RELATIONS, KINDS, (100, 770)):
            views, given = relation_of(relation, views_of(batch, 1021, d, dtype, "cuda"))
            for route in (name for name in ROUTES if name != "fused"):
                found = error(views, 0.1, "two_view", kind, given, **ROUTES[route])
                assert found < 7e-3, (relation, kind, d, route, found)
