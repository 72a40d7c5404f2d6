"""A pairing that is registered is computed as it says on every route, or refused; never as another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import flatclr
from flatclr.contrast.kernels import tiled_torch
from flatclr.contrast.relation import PAIRINGS, Group
from tests.contrast.test_relation_values import chosen, require_equal
from tests.support import relation_oracles as ro
from tests.support.relation_harness import CASES, ROUTES, Tensors, problem_of

Plan = Callable[[int], tuple[Group, ...]]

# name -> groups of (view, candidates, positives)
ADDED: dict[str, Callable[[int], list[tuple[int, list[int], list[int]]]]] = {
    "second_to_first": lambda views: [(1, [0], [0])],
    "last_to_all": lambda views: [(views - 1, list(range(views)), list(range(views - 1)))],
    "views_backwards": lambda views: [
        (v, list(range(views)), [w for w in range(views) if w != v]) for v in reversed(range(views))
    ],
    "round": lambda views: [(v, [(v + 1) % views], [(v + 1) % views]) for v in range(views)],
    "own_and_next": lambda views: [(v, sorted({v, (v + 1) % views}), [(v + 1) % views]) for v in range(views)],
    "from_the_first_two": lambda views: [(0, [1], [1]), (1, [0], [0])],
}
REFUSED: dict[str, Callable[[int], list[tuple[int, list[int], list[int]]]]] = {
    "one_view_twice": lambda views: [(0, [0, 1], [1]), (0, [1], [1])],
    "uneven_candidates": lambda views: [(0, [0, 1], [1]), (1, [0], [0])],
    "uneven_positives": lambda views: [(0, [0, 1], [1]), (1, [0, 1], [0, 1])],
    "no_positives": lambda views: [(0, [0, 1], []), (1, [0, 1], [])],
    "no_candidates": lambda views: [(0, [], [1])],
    "no_anchors": lambda views: [],
    "its_own_positive": lambda views: [(0, [1], [0])],
    "a_candidate_twice": lambda views: [(0, [1, 1], [1])],
    "a_view_that_is_not_there": lambda views: [(0, [views], [1])],
}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, plan in {**ADDED, **REFUSED}.items():

        def groups(views: int, plan: Any = plan) -> tuple[Group, ...]:
            return tuple(Group(v, tuple(c), tuple(p)) for v, c, p in plan(views))

        monkeypatch.setitem(PAIRINGS, name, groups)
    monkeypatch.setattr(tiled_torch, "tile_edge", lambda device: 5)


def tensors_and_options(name: str, views: int, **said: Any) -> tuple[ro.Problem, Tensors, dict[str, Any]]:
    problem = problem_of(views, pairing=name, **said)
    margin = {} if problem.margin is None else {"false_negative_margin": problem.margin}
    return problem, Tensors.of(problem), {"pairing": name, **margin}


SAID: dict[str, dict[str, Any]] = {
    "nothing": {},
    "labels": {"labels": [0, 1, 1, 0, 2, 1]},
    "everything": {"queue": 5, "hard": 2, "margin": 0.2, "labels": [0, 1, 1, 0, 2, 1], "ids": [0, 1, 2, 0, 4, 1]},
}


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
@pytest.mark.parametrize("more", [*({"route": r} for r in ROUTES), {}, {"drawn": True}], ids=[*ROUTES, "auto", "drawn"])
def test_an_added_pairing_is_computed_as_it_says(
    name: str, views: int, said: dict[str, Any], more: dict[str, Any]
) -> None:
    problem, tensors, options = tensors_and_options(name, views, **said)
    plan = ADDED[name](views)
    if more.get("drawn"):
        more = {"negatives_per_anchor": len(plan[0][1]) * 5 + (0 if problem.queue is None else 5)}
    options |= {"inverse_temperature": 3.0, **tensors.brought, **more}
    stats = flatclr.contrast_stats(*tensors.views, **options)
    require_equal(stats, ro.anchors_of(problem, 3.0, plan), chosen=chosen(problem))


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("route", ["auto", "streamed"])
def test_the_gradient_of_an_added_pairing_is_its_own(name: str, views: int, route: str) -> None:
    plan = ADDED[name](views)
    for objective, function in (
        (flatclr.InfoNCE, ro.info_nce),
        (flatclr.FlatNCE, ro.gap),
        (lambda *a, **o: flatclr.HolderFlatNCE(*a, gamma=float("inf"), **o), ro.holder(float("inf"))),
        (lambda *a, **o: flatclr.FMICL("js", temperature=a[0], **o), ro.f_micl_gaussian("js", beta=3, mu=1, weight=40)),
    ):
        problem, tensors, options = tensors_and_options(name, views)
        loss = objective(1 / 3, route=route, **options)(*tensors.views)
        gradients = torch.autograd.grad(loss, tensors.views, allow_unused=True)
        rng, step = np.random.default_rng(0), 1e-5
        along = rng.normal(size=problem.views.shape)
        got = sum(float((g.numpy() * a).sum()) for g, a in zip(gradients, along, strict=True) if g is not None)
        ends = [
            ro.mean(ro.anchors_of(problem.moved(problem.views + by * along), 3.0, plan), function)
            for by in (step, -step)
        ]
        assert got == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", REFUSED)
def test_a_pairing_that_no_route_can_compute_is_refused(name: str) -> None:
    for said in SAID.values():
        _, tensors, options = tensors_and_options(name, 2, **said)
        with pytest.raises(ValueError, match=f"the groups of pairing '{name}' must"):
            flatclr.contrast_stats(*tensors.views, inverse_temperature=3.0, **options, **tensors.brought)


def test_an_unknown_pairing_is_refused_by_every_objective() -> None:
    for case in CASES:
        with pytest.raises(ValueError, match="pairing must be one of"):
            case.build(pairing="fifth")


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a CUDA device the kernels are compiled")
@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize(("kernels", "queue"), [("fused", 0), ("fused", 5), ("strips", 5)])
def test_triton_kernels_compute_an_added_pairing_as_it_says(name: str, kernels: str, queue: int) -> None:
    pytest.importorskip("triton")
    problem = problem_of(2, pairing=name, queue=queue)
    tensors = Tensors.of(problem, torch.float32)
    anchors = ro.anchors_of(problem, 3.0, ADDED[name](2))
    gradients = []
    for route in (kernels, "streamed"):
        stats = flatclr.contrast_stats(
            *tensors.views, inverse_temperature=3.0, pairing=name, route=route, **tensors.brought
        )
        assert stats.route == route
        np.testing.assert_allclose(stats.info_nce.detach(), ro.per_anchor(anchors, ro.info_nce), rtol=1e-4)
        gradients.append(torch.autograd.grad(stats.info_nce.mean(), tensors.leaves, retain_graph=True))
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


def test_a_pairing_registered_anew_under_its_name_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    z = torch.randn(2, 4, 3)
    for register, anchors in ((PAIRINGS["one_way"], 4), (PAIRINGS["cross"], 8)):
        monkeypatch.setitem(PAIRINGS, "mine", register)
        assert len(flatclr.contrast_stats(z, inverse_temperature=1.0, pairing="mine").positive) == anchors
