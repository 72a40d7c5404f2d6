"""Two views that meet in one block, by a plan: the bits of the streamed reductions, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.contrast import route as routes
from tests.support.cuda import captured, needs_cuda
from tests.support.interpreter import interpreted, use_tiles

pytest.importorskip("triton")

from flatclr.contrast.kernels import LARGEST_PLANNED_SCALE, may_be_planned, whole_triton
from flatclr.contrast.kernels.fused_device import LARGEST_FIXED_SCALE
from flatclr.contrast.kernels.fused_triton import Tiling

ROUTES = ("fused", "strips")


def views(pairs: int, d: int, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    generator = torch.Generator().manual_seed(pairs)
    made = (torch.randn(pairs, d, generator=generator) for _ in range(2))
    return [z.to(device, dtype).requires_grad_() for z in made]


def with_weights(leaves: list[Tensor], route: str, pairing: str) -> tuple[Tensor, ...]:
    """Stats, and gradients of a sum with a weight of its own on every output of every anchor."""
    stats = flatclr.contrast_stats(*leaves, inverse_temperature=7.0, route=route, pairing=pairing)
    found = (stats.positive, stats.negative_logsumexp, stats.gap)
    weights = torch.randn(3, len(stats.gap), generator=torch.Generator().manual_seed(7)).to(stats.gap)
    total = sum((w * x).sum() for w, x in zip(weights, found, strict=True))
    return *(x.detach() for x in found), *torch.autograd.grad(total, leaves)


def without_plans(monkeypatch: pytest.MonkeyPatch, call: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    with monkeypatch.context() as patch:
        patch.setattr(routes, "reduce_whole", lambda *_: None)
        return call()


def served(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each contrast from now on went by a plan."""
    found: list[bool] = []
    reduce = routes.reduce_whole

    def noted(*arguments: object) -> tuple[Tensor, ...] | None:
        reduced = reduce(*arguments)  # type: ignore[arg-type]
        found.append(reduced is not None)
        return reduced

    monkeypatch.setattr(routes, "reduce_whole", noted)
    return found


@pytest.mark.parametrize("route", ROUTES)
class TestOnTheCpu:
    pytestmark = interpreted

    @pytest.mark.parametrize("pairing", ["two_view", "cross"])
    @pytest.mark.parametrize(("pairs", "d"), [(5, 3), (19, 20)])
    def test_it_gives_the_bits_of_the_streamed_reductions(
        self, route: str, pairing: str, pairs: int, d: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_tiles(monkeypatch, Tiling(32, 16, 4, 2))
        leaves, by_plan = views(pairs, d, torch.bfloat16), served(monkeypatch)
        found = with_weights(leaves, route, pairing)
        assert by_plan == [True]
        for mine, theirs in zip(
            found, without_plans(monkeypatch, lambda: with_weights(leaves, route, pairing)), strict=True
        ):
            assert torch.equal(mine, theirs)

    @pytest.mark.parametrize("pairing", ["two_view", "cross"])
    @pytest.mark.parametrize(("upstream", "length"), [(2**-18, 2**-10), (1, 1), (2**22, 2**10)])
    def test_weights_of_float16_neither_overflow_nor_vanish(
        self, route: str, pairing: str, upstream: int, length: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of embeddings of such a length, so that float16 holds their gradients."""
        use_tiles(monkeypatch, Tiling(32, 16, 4, 2))
        leaves = [(length * z.detach()).requires_grad_() for z in views(19, 20, torch.float16)]
        by_plan = served(monkeypatch)

        def gradients(z: list[Tensor], way: str) -> Tensor:
            stats = flatclr.contrast_stats(*z, inverse_temperature=7.0, pairing=pairing, route=way)
            return torch.cat(torch.autograd.grad(upstream * stats.gap.sum(), z)).double()

        found = gradients(leaves, route)
        assert by_plan == [True]
        wanted = gradients([z.detach().double().requires_grad_() for z in leaves], "dense")
        assert (found - wanted).norm() < 2e-3 * wanted.norm()

    @pytest.mark.parametrize("output", ["positive", "negative_logsumexp", "gap"])
    def test_one_output_alone_sends_its_gradient(
        self, route: str, output: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leaves = views(9, 16, torch.float32)

        def gradients() -> tuple[Tensor, ...]:
            stats = flatclr.contrast_stats(*leaves, inverse_temperature=7.0, route=route)
            return torch.autograd.grad(getattr(stats, output).mean(), leaves)

        for mine, theirs in zip(gradients(), without_plans(monkeypatch, gradients), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)

    def test_what_plans_are_not_made_for_goes_another_way(self, route: str, monkeypatch: pytest.MonkeyPatch) -> None:
        by_plan = served(monkeypatch)
        leaves = views(8, 16, torch.float32)
        flatclr.InfoNCE(0.02, route=route)(*leaves)  # a temperature too small for one exponential per pair
        flatclr.InfoNCE(route=route)(*(z.T.contiguous().T for z in leaves))
        flatclr.InfoNCE(route=route)(*(torch.cat([z.new_zeros(1), z.flatten()])[1:].view_as(z) for z in leaves))
        flatclr.InfoNCE(route=route)(*leaves, negatives=leaves[0].detach())
        flatclr.InfoNCE(route=route, normalize=False)(*leaves)
        flatclr.InfoNCE(route=route, learn_temperature=True)(*leaves)
        flatclr.InfoNCE(route=route, pairing="one_way")(*leaves)
        flatclr.InfoNCE(route=route).with_stats(*leaves)
        assert by_plan == [], "these are not asked about"
        flatclr.InfoNCE(route=route)(*leaves)
        assert by_plan == [True]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("pairing", ["two_view", "cross"])
class TestOnAGpu:
    pytestmark = needs_cuda

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
    @pytest.mark.parametrize(("pairs", "d"), [(2, 1), (129, 64), (1000, 100), (1024, 384)])
    def test_every_launch_gives_the_numbers_of_the_streamed_reductions(
        self, route: str, pairing: str, pairs: int, d: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        by_plan = served(monkeypatch)
        leaves = views(pairs, d, dtype, "cuda")
        for _ in range(3):  # the first compiles, the others are launches of what was compiled
            found = with_weights(leaves, route, pairing)
            want = without_plans(monkeypatch, lambda: with_weights(leaves, route, pairing))
            for mine, theirs in zip(found, want, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4 if dtype == torch.float32 else 1e-2, atol=1e-5)
            with torch.no_grad():
                for z in leaves:
                    z.normal_()
        assert by_plan == [True] * 3

    def test_a_cuda_graph_holds_it(self, route: str, pairing: str) -> None:
        leaves = views(300, 64, torch.bfloat16, "cuda")
        objective = flatclr.InfoNCE(0.1, route=route, pairing=pairing)

        def step(z: list[Tensor] = leaves) -> tuple[Tensor, ...]:
            loss = objective(*z)
            return loss.detach(), *torch.autograd.grad(loss, z)

        graph, found = captured(step)
        with torch.no_grad():
            leaves[0].normal_()
        graph.replay()
        again = step([z.detach().clone().requires_grad_() for z in leaves])
        for mine, theirs in zip(found, again, strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("rows", [512, 1024, 2048])
class TestTheRoute:
    pytestmark = needs_cuda

    def test_plans_take_over_where_the_host_was_the_limit(self, rows: int) -> None:
        leaves = views(rows // 2, 64, torch.bfloat16, "cuda")
        route = flatclr.contrast_stats(*leaves, inverse_temperature=10.0).route
        assert route == ("dense" if rows == 512 else "fused")
        with_ess = flatclr.contrast_stats(*leaves, inverse_temperature=10.0, with_ess=True).route
        assert with_ess == "dense", "these have no plan, and launches take longer than plain code"


def test_a_plan_is_made_once_for_a_shape() -> None:
    z = torch.empty(64, 32, dtype=torch.bfloat16)
    plan = whole_triton.plan_of("fused", "views", z)
    assert plan is whole_triton.plan_of("fused", "views", z + 1)
    assert plan is not whole_triton.plan_of("fused", "cross", z)
    assert plan is not whole_triton.plan_of("strips", "views", z)
    assert may_be_planned(LARGEST_PLANNED_SCALE, z, z)
    assert not may_be_planned(LARGEST_PLANNED_SCALE + 1, z, z)
    assert LARGEST_FIXED_SCALE.value == LARGEST_PLANNED_SCALE
    assert whole_triton._plan("strips", "views", 2**16, 512, torch.bfloat16, z.device) is None, "several strips"
    assert whole_triton._plan("fused", "cross", 2**20, 128, torch.bfloat16, z.device) is None, "too many partial sums"
