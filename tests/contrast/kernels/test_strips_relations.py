"""Strips of every relation: several views, labels, ids, hard negatives, a margin, a temperature per anchor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.contrast.kernels import strips, tiled_torch
from tests.support.interpreter import assert_near, interpreted
from tests.support.relation_harness import RELATIONS, Tensors, options_of, problem_of
from tests.support.relation_oracles import Problem

pytest.importorskip("triton")

from flatclr.contrast.kernels import strips_triton

pytestmark = interpreted
# "cross" has twice the blocks, which take the interpreter twice the time
CASES = [(("views", "one_way", "within")[turn % 3], name) for turn, name in enumerate(RELATIONS)]
CASES.append(("cross", "labels_and_ids"))
TOGETHER = [("views", "everything"), ("within", "labels_and_ids"), ("one_way", "everything")]


@pytest.fixture(autouse=True)
def _several_strips_of_small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    # oblong, so that no edge stands for the other
    small = strips_triton.Tiling(16, 32, 16, warps=4, stages=2, group=2)
    for itemsize in (2, 4):
        monkeypatch.setitem(strips_triton.SUMS_TILING, itemsize, small)
        monkeypatch.setitem(strips_triton.WEIGHTS_TILING, itemsize, replace(small, rows=32, columns=16))
    monkeypatch.setattr(strips_triton, "SHIFTED_COLUMNS", 16)
    monkeypatch.setattr(strips_triton, "PRODUCT_ROWS", 16)
    monkeypatch.setattr(strips, "STRIP_BYTES", 3000)
    monkeypatch.setattr(tiled_torch, "tile_edge", lambda device: 5)


def outcome(problem: Problem, beta: float | Tensor, dtype: torch.dtype, **options: Any) -> list[Tensor]:
    """Every number of every anchor, and gradients of a sum with a different weight on each of them."""
    tensors = Tensors.of(problem, dtype)
    scale = beta.to(dtype).clone().requires_grad_() if isinstance(beta, Tensor) else beta
    stats = flatclr.contrast_stats(
        *tensors.views, inverse_temperature=scale, **options, **options_of(problem), **tensors.brought
    )
    numbers = [stats.positive, stats.negative_logsumexp, stats.gap, stats.info_nce]
    found = torch.stack([number.nan_to_num(0.0) for number in numbers])
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    leaves = [*tensors.leaves, *([scale] if isinstance(scale, Tensor) else [])]
    gradients = torch.autograd.grad((weights * found).sum(), leaves, allow_unused=True)
    counts = torch.as_tensor(stats.negatives).expand(len(stats.positive))
    return [found.detach(), stats.ess.nan_to_num(0.0), counts, *(g for g in gradients if g is not None)]


def require_equal(problem: Problem, beta: float | Tensor) -> None:
    want = outcome(problem, beta, torch.float64, route="streamed")
    for backend, dtype, near in (("torch", torch.float64, 1e-12), ("triton", torch.float32, 1e-4)):
        got = outcome(problem, beta, dtype, route="strips", backend=backend)
        for mine, theirs in zip(got, want, strict=True):
            assert_near(mine, theirs, near)


@pytest.mark.parametrize(("pairing", "relation"), CASES)
def test_strips_of_every_relation_give_the_numbers_of_the_streamed_route(pairing: str, relation: str) -> None:
    require_equal(problem_of(3, pairing=pairing, **RELATIONS[relation]), 3.0)


@pytest.mark.parametrize(("pairing", "relation"), TOGETHER)
@pytest.mark.parametrize("views", [2, 4])
def test_a_learned_temperature_is_the_same_by_strips(pairing: str, relation: str, views: int) -> None:
    require_equal(problem_of(views, pairing=pairing, **RELATIONS[relation]), torch.tensor(40.0))


@pytest.mark.parametrize(("pairing", "relation"), TOGETHER)
def test_a_temperature_per_anchor_is_the_same_by_strips(pairing: str, relation: str) -> None:
    problem = problem_of(3, pairing=pairing, **RELATIONS[relation])
    anchors = 6 * {"views": 3, "cross": 6, "within": 3, "one_way": 1}[pairing]
    require_equal(problem, torch.linspace(1, 60, anchors))


@pytest.mark.parametrize("build", [flatclr.SupCon, flatclr.FMICL, flatclr.RPC])
def test_objectives_of_labels_are_the_same_by_strips(build: Any) -> None:
    problem = problem_of(3, **RELATIONS["queue_with_labels"])
    found = []
    for route, dtype in (("strips", torch.float32), ("streamed", torch.float64)):
        tensors = Tensors.of(problem, dtype)
        loss = build(route=route)(*tensors.views, **tensors.brought)
        found.append((loss.detach(), *torch.autograd.grad(loss, tensors.leaves)))
    for mine, theirs in zip(*found, strict=True):
        assert_near(mine, theirs, 1e-4)


@pytest.mark.parametrize(
    ("pairing", "said"),
    [
        ("views", "labels"),
        ("one_way", "labels and ids"),
        ("one_way", "a scale for every anchor"),
        ("cross", "labels and a margin"),
    ],
)
def test_tiles_between_labels_that_are_far_apart_hold_nothing(pairing: str, said: str) -> None:
    """Samples are sorted by label, and whole tiles are passed over: the numbers of the dense route, in its order."""
    samples = 100
    given: dict[str, Any] = {"labels": torch.randperm(samples) // 4}
    if said == "labels and a margin":
        given["false_negative_margin"] = 0.4
    if said == "labels and ids":
        given["ids"] = torch.arange(samples) // 2
    found = []
    for way in ({"route": "dense"}, {"route": "strips", "backend": "triton"}):
        views = [x.requires_grad_() for x in torch.randn(2, samples, 8, generator=torch.Generator().manual_seed(1))]
        pairs = flatclr.PairSet.of(*views, pairing=pairing, **given, **way)
        scales = torch.linspace(3, 6, pairs.layout.anchors).requires_grad_()
        stats = flatclr.stats_of(pairs, scales if said == "a scale for every anchor" else 5.0)
        total = (stats.info_nce * torch.arange(len(scales))).sum() + 0 * scales.sum()
        found.append([total.detach(), stats.ess, *torch.autograd.grad(total, [*views, scales])])
    for exact, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, exact, rtol=2e-4, atol=2e-3)


def test_scores_far_below_0_have_a_sum_where_other_tiles_hold_nothing() -> None:
    """A tile that is not visited must not stand for scores of 0, beside which these would vanish."""
    samples, generator = 40, torch.Generator().manual_seed(2)
    common = torch.randn(8, generator=generator)
    noise = torch.randn(2, samples, 8, generator=generator) / 10
    views = [20 * (common + noise[0]), -20 * (common + noise[1])]
    labels = torch.arange(samples) // 4
    dense, mine = (
        flatclr.contrast_stats(
            *(view.to(dtype) for view in views),
            labels=labels,
            normalize=False,
            pairing="one_way",
            inverse_temperature=1.0,
            **way,
        ).positive_logsumexp
        for dtype, way in (
            (torch.float64, {"route": "dense"}),
            (torch.float32, {"route": "strips", "backend": "triton"}),
        )
    )
    assert dense.max() < -300
    torch.testing.assert_close(mine.double(), dense, rtol=1e-4, atol=1e-2)
