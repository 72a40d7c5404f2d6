"""Every objective under every relation: value, slope against finite differences of the oracle, closed forms."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.contrast.kernels import tiled_torch
from tests.support import oracles
from tests.support import relation_oracles as ro
from tests.support.relation_harness import (
    CASES,
    KINDS,
    PAIRINGS,
    RELATIONS,
    ROUTES,
    Case,
    Tensors,
    options_of,
    problem_of,
)

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_route = pytest.mark.parametrize("route", ROUTES)
every_pairing = pytest.mark.parametrize("pairing", PAIRINGS)

# a pairing and a number of views for each relation, so that all of them meet
PROBLEMS = {
    name: {**RELATIONS[name], "views": views, "pairing": pairing}
    for name, views, pairing in (
        ("views", 3, "views"),
        ("two_labels", 2, "views"),
        ("some_labels", 3, "cross"),
        ("labels_and_ids", 3, "within"),
        ("left_out", 3, "one_way"),
        ("ids", 2, "views"),
        ("hard_and_labels", 3, "views"),
        ("only_hard", 2, "cross"),
        ("below_the_positive", 2, "within"),
        ("queue_with_labels", 2, "one_way"),
        ("queue_with_ids", 3, "within"),
        ("everything", 3, "views"),
    )
}
# one of every kind meets every problem, the others a few
MEETING = {
    f"{case.name}-{name}": (case, of)
    for case in CASES
    for name, of in PROBLEMS.items()
    if case in KINDS or name in ("some_labels", "left_out", "everything")
}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_torch, "tile_edge", lambda device: 5)


def loss_and_gradients(case: Case, problem: ro.Problem, **more: Any) -> tuple[Tensor, list[Tensor]]:
    tensors = Tensors.of(problem)
    loss = case.objective(problem, **more)(*tensors.views, **tensors.brought)
    return loss.detach(), list(torch.autograd.grad(loss, tensors.leaves))


def slope(case: Case, problem: ro.Problem, directions: list[ro.Array], step: float = 1e-5) -> float:
    """Of the potential along a direction of views, queue and hard negatives, in that order."""

    def moved(by: float) -> float:
        along = iter(directions)
        views = np.stack([z + by * next(along) for z in problem.views])
        queue = None if problem.queue is None else problem.queue + by * next(along)
        hard = None if problem.hard is None else problem.hard + by * next(along)
        return case.potential(problem.moved(views, hard, queue))

    return (moved(step) - moved(-step)) / (2 * step)


@pytest.mark.parametrize(("case", "of"), MEETING.values(), ids=MEETING)
@every_route
def test_value_and_slope_equal_the_oracle(case: Case, of: dict[str, Any], route: str) -> None:
    problem = case.asked_of(problem_of(**of))
    if not case.fits(problem):
        pytest.skip("refuses labels")
    loss, gradients = loss_and_gradients(case, problem, route=route)
    assert loss.item() == pytest.approx(case.value(problem), rel=1e-10, abs=1e-10)
    rng = np.random.default_rng(1)
    directions = [rng.normal(size=g.shape) for g in gradients]
    got = sum(float((g.numpy() * direction).sum()) for g, direction in zip(gradients, directions, strict=True))
    assert got == pytest.approx(slope(case, problem, directions), rel=1e-5, abs=1e-7)


@every_case
@pytest.mark.parametrize("name", ["views", "some_labels", "everything"])
def test_value_and_slope_of_drawn_negatives_equal_the_oracle(case: Case, name: str) -> None:
    """All of them are drawn, so that the oracle knows which."""
    problem = case.asked_of(problem_of(**PROBLEMS[name]))
    if not case.fits(problem):
        pytest.skip("refuses labels")
    available = len(ro.groups(problem.pairing, 3)[0][1]) * 5 + (0 if problem.queue is None else len(problem.queue))
    loss, gradients = loss_and_gradients(case, problem, negatives_per_anchor=available)
    assert loss.item() == pytest.approx(case.value(problem), rel=1e-10, abs=1e-10)
    rng = np.random.default_rng(1)
    directions = [rng.normal(size=g.shape) for g in gradients]
    got = sum(float((g.numpy() * direction).sum()) for g, direction in zip(gradients, directions, strict=True))
    assert got == pytest.approx(slope(case, problem, directions), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", ["info_nce", "flat_nce", "sup_con_inside", "fmicl_js"])
@every_route
def test_each_entry_of_the_gradient_equals_a_finite_difference(name: str, route: str) -> None:
    case = {case.name: case for case in CASES}[name]
    problem = problem_of(samples=6, d=2, **PROBLEMS["everything"])
    _, gradients = loss_and_gradients(case, problem, route=route)
    given = [problem.views, problem.hard, *([] if problem.queue is None else [problem.queue])]
    expected = oracles.finite_difference_gradient(lambda *z: case.potential(problem.moved(*z)), *given)
    views, *others = expected
    wanted = [*views, *reversed(others)]
    for got, want in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6, atol=1e-7)


def flat_nce_weights(anchor: ro.Anchor) -> tuple[ro.Array, ro.Array]:
    """Importance weights push the negatives, every positive pulls alike."""
    return -np.full(len(anchor.positives), 1 / len(anchor.positives)), oracles.importance_weights(anchor.negatives)


def info_nce_weights(anchor: ro.Anchor) -> tuple[ro.Array, ro.Array]:
    """For each positive alone, 1 - q_p pulls it and pushes the negatives by their weights."""
    partition = sum(math.exp(s) for s in anchor.negatives)
    missing = np.array([partition / (partition + math.exp(s)) for s in anchor.positives]) / len(anchor.positives)
    return -missing, missing.sum() * oracles.importance_weights(anchor.negatives)


def sup_con_weights(anchor: ro.Anchor) -> tuple[ro.Array, ro.Array]:
    """The softmax over everybody pushes, every positive pulls alike."""
    softmax = oracles.importance_weights(np.concatenate([anchor.positives, anchor.negatives]))
    count = len(anchor.positives)
    return softmax[:count] - 1 / count, softmax[count:]


def sup_con_inside_weights(anchor: ro.Anchor) -> tuple[ro.Array, ro.Array]:
    """The softmax over everybody pushes, the softmax over the positives pulls."""
    softmax = oracles.importance_weights(np.concatenate([anchor.positives, anchor.negatives]))
    count = len(anchor.positives)
    return softmax[:count] - oracles.importance_weights(anchor.positives), softmax[count:]


CLOSED_FORMS = {
    "flat_nce": (flatclr.FlatNCE, {}, flat_nce_weights),
    "info_nce": (flatclr.InfoNCE, {}, info_nce_weights),
    "sup_con": (flatclr.SupCon, {}, sup_con_weights),
    "sup_con_inside": (flatclr.SupCon, {"position": "inside"}, sup_con_inside_weights),
}


@pytest.mark.parametrize(("kind", "more", "weights"), CLOSED_FORMS.values(), ids=CLOSED_FORMS)
@pytest.mark.parametrize("relation", [RELATIONS[n] for n in ("views", "some_labels", "everything")])
@every_pairing
@every_route
def test_gradient_equals_the_closed_form(
    kind: Any, more: dict[str, Any], weights: Any, relation: dict[str, Any], pairing: str, route: str
) -> None:
    problem = problem_of(3, pairing=pairing, **relation)
    unit = problem.moved(
        np.stack([oracles.normalized(z) for z in problem.views]),
        None if problem.hard is None else np.stack([oracles.normalized(z) for z in problem.hard]),
        None if problem.queue is None else oracles.normalized(problem.queue),
    )
    tensors = Tensors.of(unit)
    objective = kind(0.2, route=route, **more, **options_of(unit))
    gradients = torch.autograd.grad(objective(*tensors.views, **tensors.brought), tensors.leaves)
    expected = ro.score_weights_gradient(unit, 5.0, weights)
    names: list[Any] = [*range(3), *(n for n, z in (("queue", unit.queue), ("hard", unit.hard)) if z is not None)]
    for name, got, leaf in zip(names, gradients, tensors.leaves, strict=True):
        rows = leaf.detach().numpy().reshape(-1, leaf.shape[-1])
        for i, (z, g) in enumerate(zip(rows, got.numpy().reshape(rows.shape), strict=True)):
            want = expected[name, i]
            np.testing.assert_allclose(g, want - z * (z @ want), rtol=1e-10, atol=1e-12)


plain_flo = functools.partial(flatclr.FLO, running_offset=False)


@pytest.mark.parametrize(
    ("kind", "oracle"),
    [
        (flatclr.InfoNCE, ro.info_nce),
        (flatclr.SupCon, ro.sup_con_outside),
        (flatclr.NWJ, ro.nwj),
        (plain_flo, lambda a: ro.flo(a, lambda s, _: -s)),
        (flatclr.DV, None),
        (flatclr.RPC, ro.rpc(a=0.0, b=0.001, g=1.0)),
    ],
)
@pytest.mark.parametrize("relation", ["views", "some_labels", "one_hard", "everything"])
@every_route
def test_a_learned_temperature_gets_the_gradient_of_the_oracle(
    kind: Any, oracle: Any, relation: str, route: str
) -> None:
    problem = problem_of(3, **RELATIONS[relation])
    if kind is plain_flo and problem.labels is not None:
        pytest.skip("refuses labels")
    tensors = Tensors.of(problem)
    module = kind(0.5, learn_temperature=True, route=route, **options_of(problem) | {"normalize": True}).double()
    scale = module.scale.log_inverse_temperature
    (got,) = torch.autograd.grad(module(*tensors.views, **tensors.brought), scale)

    def loss(log_beta: float) -> float:
        anchors = ro.anchors_of(problem, math.exp(log_beta))
        return ro.dv(anchors) if oracle is None else ro.mean(anchors, oracle)

    middle, step = math.log(2.0), 1e-5
    assert got.item() == pytest.approx((loss(middle + step) - loss(middle - step)) / (2 * step), rel=1e-6, abs=1e-9)


@every_pairing
@every_route
@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("relation", ["views", "some_labels", "everything"])
def test_temperatures_of_their_own_get_gradients_of_their_own(
    pairing: str, route: str, views: int, relation: str
) -> None:
    problem = problem_of(views, pairing=pairing, **RELATIONS[relation])
    betas = np.linspace(0.5, 6.0, 6 * len(ro.groups(pairing, views)))
    weights = np.random.default_rng(2).normal(size=(2, len(betas)))
    tensors, beta = Tensors.of(problem), torch.tensor(betas, requires_grad=True)
    stats = flatclr.contrast_stats(
        *tensors.views, inverse_temperature=beta, route=route, **options_of(problem), **tensors.brought
    )
    w_info, w_gap = torch.tensor(weights)
    total = stats.mean(w_info * stats.info_nce + w_gap * stats.gap)
    *gradients, g_beta = torch.autograd.grad(total, [*tensors.leaves, beta])

    def of(problem: ro.Problem, betas: ro.Array) -> float:
        anchors = ro.anchors_of(problem, betas)
        values = weights[0] * ro.per_anchor(anchors, ro.info_nce) + weights[1] * ro.per_anchor(anchors, ro.gap)
        return float(np.nanmean(values))

    rng, step = np.random.default_rng(3), 1e-5
    along, of_betas = [rng.normal(size=z.shape) for z in problem.views], rng.normal(size=betas.shape)
    got = sum(float((g.numpy() * a).sum()) for g, a in zip(gradients[:views], along, strict=True))
    ends = [of(problem.moved(problem.views + by * np.stack(along)), betas) for by in (step, -step)]
    assert got == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-8)
    ends = [of(problem, betas + by * of_betas) for by in (step, -step)]
    assert float(g_beta.numpy() @ of_betas) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-8)


@every_route
@pytest.mark.parametrize("relation", ["margin", "left_out"])
def test_an_anchor_without_negatives_sends_nothing_back(route: str, relation: str) -> None:
    of = {"margin": {"margin": -1.3}, "left_out": RELATIONS["left_out"]}[relation]
    problem = problem_of(2, pairing="one_way", **of)
    anchors = ro.anchors_of(problem, 3.0)
    assert 0 < len(ro.counted(anchors)) < len(anchors)
    for case in CASES:
        if case.fits(problem) and case.normalize:
            loss, gradients = loss_and_gradients(case, problem, route=route)
            assert loss.isfinite(), case.name
            assert all(g.isfinite().all() for g in gradients), case.name
            for n, anchor in enumerate(anchors):
                if not anchor.counts:
                    assert gradients[0][n].abs().max() == 0, case.name


def test_labels_are_refused_where_positives_must_be_views() -> None:
    problem = problem_of(2, labels=[0, 0, 1, 1, 2, 2])
    tensors = Tensors.of(problem)
    with pytest.raises(ValueError, match="FLO must have the views of a sample as its positives, got labels="):
        flatclr.FLO()(*tensors.views, **tensors.brought)
