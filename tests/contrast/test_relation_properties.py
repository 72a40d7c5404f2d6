"""What holds for every batch, whatever is said of its samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import flatclr
from flatclr.contrast.kernels import tiled_torch
from tests.support import relation_oracles as ro
from tests.support.relation_harness import (
    CASES,
    KINDS,
    PAIRINGS,
    ROUTES,
    Case,
    Tensors,
    options_of,
    problem_of,
    stats_of,
)

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_kind = pytest.mark.parametrize("case", KINDS, ids=lambda case: case.name)
seeds = st.integers(0, 2**32 - 1)
pairings = st.sampled_from(PAIRINGS)
two_to_four, three_or_four = st.integers(2, 4), st.integers(3, 4)
few = settings(max_examples=6)


@st.composite
def problems(draw: Any, *, views: Any = two_to_four, labels: bool = True) -> ro.Problem:
    """Anything that can be said, in any mixture; a queue keeps every label from being alone."""
    samples = draw(st.integers(2, 6))
    codes = st.none() | st.lists(st.integers(0, 3), min_size=samples, max_size=samples)
    of: dict[str, Any] = {"ids": draw(codes), "labels": draw(codes) if labels else None}
    of |= {"margin": draw(st.none() | st.sampled_from([0.0, 0.3])), "hard": draw(st.integers(0, 2))}
    problem = problem_of(draw(views), samples, 4, queue=5, pairing=draw(pairings), seed=draw(seeds), **of)
    kept = ro.anchors_of(problem, 1.0)
    return problem if ro.counted(kept) else replace(problem, margin=None)


def loss_and_gradient(case: Case, problem: ro.Problem, **more: Any) -> tuple[Tensor, Tensor]:
    tensors = Tensors.of(problem)
    loss = case.objective(problem, **more)(*tensors.views, **tensors.brought)
    return loss.detach(), torch.stack(torch.autograd.grad(loss, tensors.views))


def permuted(problem: ro.Problem, order: list[int]) -> ro.Problem:
    codes = {
        name: None if of is None else [of[n] for n in order]
        for name, of in (("labels", problem.labels), ("ids", problem.ids))
    }
    hard = None if problem.hard is None else problem.hard[order]
    return replace(problem, views=problem.views[:, order], hard=hard, **codes)


@every_kind
@few
@given(data=st.data())
def test_the_order_of_the_samples_does_not_matter(case: Case, data: st.DataObject) -> None:
    problem = case.asked_of(data.draw(problems(labels=case.takes_labels)))
    order = data.draw(st.permutations(range(problem.views.shape[1])))
    loss, gradient = loss_and_gradient(case, problem)
    again, permuted_gradient = loss_and_gradient(case, permuted(problem, order))
    torch.testing.assert_close(again, loss, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(permuted_gradient, gradient[:, order], rtol=1e-7, atol=1e-9)


@every_kind
@few
@given(data=st.data())
def test_the_order_of_the_views_does_not_matter(case: Case, data: st.DataObject) -> None:
    problem = case.asked_of(data.draw(problems(labels=case.takes_labels)))
    if case.name == "flo_module":  # its u can tell views apart
        return
    order = list(data.draw(st.permutations(range(len(problem.views)))))
    if problem.pairing == "one_way":
        order = [0, *(v for v in order if v)]
    loss, gradient = loss_and_gradient(case, problem)
    again, permuted_gradient = loss_and_gradient(case, replace(problem, views=problem.views[order]))
    torch.testing.assert_close(again, loss, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(permuted_gradient, gradient[order], rtol=1e-7, atol=1e-9)


@every_kind
@few
@given(data=st.data())
def test_dense_streamed_and_all_drawn_are_the_same(case: Case, data: st.DataObject) -> None:
    problem = case.asked_of(data.draw(problems(views=three_or_four, labels=case.takes_labels)))
    available = len(ro.groups(problem.pairing, len(problem.views))[0][1]) * (problem.views.shape[1] - 1) + 5
    loss, gradient = loss_and_gradient(case, problem, route="dense")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiled_torch, "tile_edge", lambda device: data.draw(st.integers(1, 9)))
        for more in ({"route": "streamed"}, {"negatives_per_anchor": available}):
            again, streamed = loss_and_gradient(case, problem, **more)
            torch.testing.assert_close(again, loss, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(streamed, gradient, rtol=1e-7, atol=1e-9)


@every_kind
@given(seed=seeds, samples=st.integers(2, 9), route=st.sampled_from(ROUTES))
@few
def test_two_views_are_two_view_bit_for_bit(case: Case, seed: int, samples: int, route: str) -> None:
    problem = case.asked_of(problem_of(2, samples, seed=seed))
    new, old = (loss_and_gradient(case, replace(problem, pairing=p), route=route) for p in ("views", "two_view"))
    for got, want in zip(new, old, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@every_kind
@given(
    seed=seeds,
    samples=st.integers(2, 6),
    views=st.integers(2, 4),
    pairing=pairings,
    what=st.sampled_from(["labels", "ids"]),
)
@few
def test_codes_that_are_all_different_say_nothing(
    case: Case, seed: int, samples: int, views: int, pairing: str, what: str
) -> None:
    if what == "labels" and not case.takes_labels:
        return
    problem = case.asked_of(problem_of(views, samples, pairing=pairing, seed=seed))
    codes = (np.random.default_rng(seed).permutation(samples) - 1).tolist()
    for got, want in zip(
        loss_and_gradient(case, replace(problem, **{what: codes})), loss_and_gradient(case, problem), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@every_kind
@given(data=st.data())
@few
def test_one_tensor_of_all_views_is_the_views_bit_for_bit(case: Case, data: st.DataObject) -> None:
    problem = case.asked_of(data.draw(problems(labels=case.takes_labels)))
    loss, gradient = loss_and_gradient(case, problem)
    tensors = Tensors.of(problem)
    stack = torch.tensor(problem.views, requires_grad=True)
    again = case.objective(problem)(stack, **tensors.brought)
    torch.testing.assert_close(again.detach(), loss, rtol=0, atol=0)
    torch.testing.assert_close(torch.autograd.grad(again, stack)[0], gradient, rtol=0, atol=0)


@given(data=st.data(), margin=st.floats(2, 9.9), route=st.sampled_from(ROUTES))
def test_a_margin_of_two_or_more_is_off(data: st.DataObject, margin: float, route: str) -> None:
    problem = replace(data.draw(problems(views=three_or_four)), margin=None)
    off, on = (stats_of(replace(problem, margin=m), 4.0, route=route) for m in (None, margin))
    for name in ("positive", "negative_logsumexp", "ess", "info_nce"):
        torch.testing.assert_close(getattr(on, name), getattr(off, name), rtol=1e-12, atol=1e-12, equal_nan=True)


@given(data=st.data(), route=st.sampled_from(ROUTES), beta=st.floats(0.1, 50))
def test_equal_temperatures_per_anchor_are_one_temperature(data: st.DataObject, route: str, beta: float) -> None:
    problem = data.draw(problems(views=three_or_four))
    anchors = len(ro.groups(problem.pairing, len(problem.views))) * problem.views.shape[1]
    one, each = (stats_of(problem, b, route=route) for b in (beta, torch.full((anchors,), beta, dtype=torch.float64)))
    for name in ("positive", "negative_logsumexp", "ess", "info_nce", "positive_logsumexp"):
        torch.testing.assert_close(getattr(each, name), getattr(one, name), rtol=1e-10, atol=1e-10, equal_nan=True)


@every_case
@few
@given(data=st.data(), aligned=st.booleans(), route=st.sampled_from(ROUTES))
def test_a_temperature_of_a_thousandth_stays_finite(case: Case, data: st.DataObject, aligned: bool, route: str) -> None:
    """In float32, for objectives that have a temperature; others are as they are."""
    problem = case.asked_of(data.draw(problems(views=three_or_four, labels=case.takes_labels)))
    if aligned:
        problem = replace(problem, views=np.repeat(problem.views[:1], len(problem.views), 0))
    tensors = Tensors.of(problem, torch.float32)
    objective = case.build(route=route, **options_of(problem) | {"normalize": problem.normalize})
    if hasattr(objective.scale, "temperature") and "align" not in case.name and "cosine" not in case.name:
        objective.scale.inverse_temperature = 1e3
    loss = objective(*tensors.views, **tensors.brought)
    assert loss.isfinite()
    gradients = torch.autograd.grad(loss, tensors.leaves, allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in gradients)


@given(data=st.data(), scale=st.floats(1e-3, 1e3))
def test_the_length_of_embeddings_does_not_matter_on_the_sphere(data: st.DataObject, scale: float) -> None:
    problem = data.draw(problems())
    longer = problem.moved(
        scale * problem.views, None if problem.hard is None else problem.hard / scale, 2 * scale * problem.queue
    )
    for name in ("positive", "negative_logsumexp", "info_nce"):
        here, there = (getattr(stats_of(p, 4.0), name) for p in (problem, longer))
        torch.testing.assert_close(there, here, rtol=1e-9, atol=1e-9, equal_nan=True)


@given(data=st.data())
def test_ess_is_between_one_negative_and_all_of_them(data: st.DataObject) -> None:
    problem = data.draw(problems())
    stats = stats_of(problem, 20.0)
    negatives = torch.as_tensor(stats.negatives)
    with_some = negatives.expand(len(stats.ess)) > 0
    assert (stats.ess[with_some] <= 1).all()
    assert (stats.ess * negatives >= 1 - 1e-12)[with_some].all()


def test_the_controller_follows_the_mean_ess_of_the_anchors_that_have_negatives() -> None:
    problem = problem_of(3, labels=[0, 0, 0, 0, 0, 1], ids=[5, 6, 7, 8, 9, 5])
    ess = ro.mean(ro.anchors_of(problem, 10.0), ro.ess)
    tensors = Tensors.of(problem)
    for target, up in ((ess - 1e-6, True), (ess + 1e-6, False)):
        control = flatclr.EssControl(target=target)
        flatclr.InfoNCE(control).double()(*tensors.views, **tensors.brought)
        control.advance()
        assert (control.inverse_temperature > 10) == up
