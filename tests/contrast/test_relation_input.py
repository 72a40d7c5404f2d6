"""What may be passed of views, labels, ids and hard negatives: types, layouts, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flatclr
from tests.support import relation_oracles as ro
from tests.support.relation_harness import CASES, KINDS, PAIRINGS, RELATIONS, ROUTES, Case, Tensors, problem_of

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_kind = pytest.mark.parametrize("case", KINDS, ids=lambda case: case.name)
every_route = pytest.mark.parametrize("route", ROUTES)
Z = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(0))
HARD = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(1))
QUEUE = torch.randn(5, 3, generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([0, 1, 0, 1])

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "labels of the wrong length": ({"labels": torch.arange(3)}, "labels must be 4 whole numbers, one per sample, got"),
    "labels of every row": ({"labels": torch.arange(12)}, "labels must be 4 whole numbers"),
    "labels one-hot": ({"labels": torch.eye(4).long()}, "labels must be 4 whole numbers"),
    "labels of floats": ({"labels": LABELS.float()}, "got torch.float32 of shape [4]; number them with integers"),
    "labels of words": (
        {"labels": ["cat", "dog", "cat", "cow"]},
        "labels must be 4 whole numbers, one per sample, got",
    ),
    "ids of floats": ({"ids": LABELS.double()}, "ids must be 4 whole numbers"),
    "labels without the queue's": (
        {"labels": LABELS, "negatives": QUEUE},
        "labels with a queue must come with negative_labels [5], got none",
    ),
    "ids without the queue's": (
        {"ids": LABELS, "negatives": QUEUE},
        "ids with a queue must come with negative_ids [5], got none",
    ),
    "queue labels without a queue": (
        {"labels": LABELS, "negative_labels": LABELS},
        "negative_labels must come with negatives=, got them alone",
    ),
    "queue ids without a queue": (
        {"ids": LABELS, "negative_ids": LABELS},
        "negative_ids must come with negatives=, got them alone",
    ),
    "queue labels without labels": (
        {"negatives": QUEUE, "negative_labels": torch.arange(5)},
        "negative_labels must come with labels=, got them alone",
    ),
    "queue labels of the wrong length": (
        {"labels": LABELS, "negatives": QUEUE, "negative_labels": torch.arange(4)},
        "negative_labels must be 5 whole numbers",
    ),
    "hard negatives of another batch": (
        {"hard_negatives": HARD[:3]},
        "hard_negatives must have shape [4, H, 3], got [3, 2, 3]",
    ),
    "hard negatives of another width": ({"hard_negatives": HARD[..., :2]}, "got [4, 2, 2]"),
    "no hard negatives": ({"hard_negatives": HARD[:, :0]}, "got [4, 0, 3]"),
    "one hard negative each": ({"hard_negatives": HARD[:, 0]}, "got [4, 3]; row n holds those of sample n"),
    "hard negatives of another type": (
        {"hard_negatives": HARD.double()},
        "hard_negatives must be torch.float32 on cpu as the views, got torch.float64",
    ),
    "hard negatives in a list": ({"hard_negatives": HARD.tolist()}, "hard_negatives must be a torch.Tensor"),
    "a margin off the sphere": (
        {"false_negative_margin": 0.1, "normalize": False},
        "false_negative_margin must be measured in cosines, got normalize=False",
    ),
    "a margin that is no number": ({"false_negative_margin": float("nan")}, "false_negative_margin must be"),
    "labels in the fused kernels": ({"labels": LABELS, "route": "fused"}, "route='fused' must be asked of two views"),
    "three views in the fused kernels": ({"route": "fused"}, "use route='strips' or 'streamed'"),
    "the fused kernels without Triton": ({"route": "fused", "backend": "torch"}, "backend must be 'triton'"),
    "a route that contradicts": (
        {"backend": "triton", "route": "dense"},
        "route must be 'fused' or 'strips' with backend='triton'",
    ),
    "too many to draw": ({"negatives_per_anchor": 10}, "negatives_per_anchor must be"),
    "an unknown pairing": ({"pairing": "all"}, "pairing must be one of"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        flatclr.contrast_stats(*Z, inverse_temperature=2.0, **options)


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ((), "a contrast must have at least 2 views, got 0"),
        ((Z[0],), "a contrast must have at least 2 views, got 1; pass z_a and z_b, or one tensor [V, N, d]"),
        ((Z[:1],), "a contrast must have at least 2 views, got 1"),
        ((Z[:2], Z[:2]), "must have shape [N, d]"),
        ((Z[0], Z[1], Z[2][:3]), "must have the same shape, got [4, 3] and [3, 3]"),
        ((Z[0], Z[1], Z[2].double()), "dtype"),
    ],
)
def test_views_that_do_not_fit_are_named(views: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        flatclr.InfoNCE()(*views)


@pytest.mark.parametrize("shape", [(4,), (11,), (13,), (3, 4)])
def test_temperatures_per_anchor_must_be_as_many_as_anchors(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"inverse_temperature must be .*one (value )?per anchor"):
        flatclr.contrast_stats(*Z, inverse_temperature=torch.ones(shape))


def test_a_temperature_per_anchor_that_is_not_positive_is_refused() -> None:
    betas = torch.ones(12)
    betas[7] = 0.0
    with pytest.raises(ValueError, match="inverse_temperature must be"):
        flatclr.contrast_stats(*Z, inverse_temperature=betas)


@pytest.mark.parametrize(("value", "told"), [(torch.nan, "finite"), (0.0, "zero")])
def test_hard_negatives_are_looked_at_when_embeddings_are(value: float, told: str) -> None:
    hard = HARD.clone()
    hard[2, 1] = value
    with pytest.raises(ValueError, match=f"hard_negatives must .*{told}"):
        flatclr.InfoNCE(check_embeddings=True)(*Z, hard_negatives=hard)


def everything(case: Case, dtype: torch.dtype, d: int = 16) -> ro.Problem:
    """All that can be said of six samples, rounded to a type, no cosine so near the margin that rounding decides."""
    said = {k: v for k, v in RELATIONS["everything"].items() if k != "labels" or case.takes_labels}
    problem = case.asked_of(problem_of(3, d=d, seed=4, **said))

    def rounded(z: ro.Array | None) -> ro.Array | None:
        return None if z is None else torch.tensor(z).to(dtype).double().numpy()

    views = rounded(problem.views)
    assert views is not None
    near = problem.moved(views, rounded(problem.hard), rounded(problem.queue))
    by = 1e-8 if dtype == torch.float64 else 1e-4
    kept = [[len(a.negatives) for a in ro.anchors_of(replace(near, margin=m), 1.0)] for m in (0.2 - by, 0.2 + by)]
    assert kept[0] == kept[1]
    return near


def loss_and_gradients(
    case: Case, problem: ro.Problem, dtype: torch.dtype = torch.float64, **more: Any
) -> tuple[Tensor, list[Tensor]]:
    tensors = Tensors.of(problem, dtype)
    loss = case.objective(problem, **more)(*tensors.views, **tensors.brought)
    return loss.detach(), list(torch.autograd.grad(loss, tensors.leaves))


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@every_route
def test_lower_precision_accumulates_in_float32(case: Case, dtype: torch.dtype, route: str) -> None:
    problem = everything(case, dtype)
    loss, gradients = loss_and_gradients(case, problem, dtype, route=route)
    _, expected = loss_and_gradients(case, problem, route=route)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(case.value(problem), rel=2e-5, abs=2e-5)
    tolerance = 4 * torch.finfo(dtype).eps if dtype != torch.float32 else 2e-5
    for got, want in zip(gradients, expected, strict=True):
        assert got.dtype == dtype
        assert (got.double() - want).norm() <= tolerance * want.norm()


@every_kind
@every_route
def test_autocast_does_not_lower_the_precision(case: Case, route: str) -> None:
    problem = everything(case, torch.float32)
    loss, gradients = loss_and_gradients(case, problem, torch.float32, route=route)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast, cast_gradients = loss_and_gradients(case, problem, torch.float32, route=route)
    torch.testing.assert_close(cast, loss, rtol=1e-5, atol=1e-6)
    for got, want in zip(cast_gradients, gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6 * max(1.0, float(want.abs().max())))


@every_kind
@every_route
def test_strided_views_codes_and_hard_negatives_give_the_same_numbers(case: Case, route: str) -> None:
    problem = everything(case, torch.float64, d=4)
    loss, gradients = loss_and_gradients(case, problem, route=route)
    tensors = Tensors.of(problem)
    strided = [z.detach().repeat_interleave(2, -1).requires_grad_() for z in tensors.leaves]
    views, (queue, hard) = [z[..., ::2] for z in strided[:3]], (z[..., ::2] for z in strided[3:])
    brought = {n: x.repeat_interleave(2)[::2] for n, x in tensors.brought.items() if not x.is_floating_point()}
    again = case.objective(problem, route=route)(*views, negatives=queue, hard_negatives=hard, **brought)
    torch.testing.assert_close(again.detach(), loss, rtol=1e-12, atol=1e-12)
    for got, want in zip(torch.autograd.grad(again, strided), gradients, strict=True):
        torch.testing.assert_close(got[..., ::2], want, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32, torch.bool, list, np.asarray])
def test_codes_may_be_whole_numbers_of_any_kind(kind: Any) -> None:
    labels = [1, 0, 1, 0]
    given = torch.tensor(labels, dtype=kind) if isinstance(kind, torch.dtype) else kind(labels)
    loss = flatclr.SupCon()(*Z, labels=given, ids=torch.arange(4))
    torch.testing.assert_close(loss, flatclr.SupCon()(*Z, labels=torch.tensor(labels)))


@every_kind
@every_route
def test_stats_are_detached_and_say_the_same_of_the_batch(case: Case, route: str) -> None:
    problem = everything(case, torch.float64, d=4)
    tensors, objective = Tensors.of(problem), case.objective(problem, route=route)
    loss, stats = objective.with_stats(*tensors.views, **tensors.brought)
    torch.testing.assert_close(loss, objective(*tensors.views, **tensors.brought))
    anchors = ro.anchors_of(problem, float(objective.inverse_temperature))
    for name, function in (("info_nce", ro.info_nce), ("ess", ro.ess), ("gap", ro.gap)):
        got = getattr(stats, name)
        assert not got.requires_grad
        np.testing.assert_allclose(got, ro.per_anchor(anchors, function), rtol=1e-9, atol=1e-11)


def test_gauges_alone_cost_no_graph() -> None:
    z = [x.clone().requires_grad_() for x in Z]
    with torch.no_grad():
        stats = flatclr.contrast_stats(*z, inverse_temperature=2.0, labels=LABELS)
    assert not stats.negative_logsumexp.requires_grad
    with torch.inference_mode():
        for route in ROUTES:
            assert flatclr.SupCon(route=route, false_negative_margin=0.5)(
                *z, labels=LABELS, hard_negatives=HARD
            ).isfinite()


@every_route
def test_loss_scaling_scales_the_gradient(route: str) -> None:
    problem = problem_of(3, **RELATIONS["everything"])
    for case in CASES:
        if case.fits(problem) and case.normalize:
            tensors = Tensors.of(problem)
            _, gradients = loss_and_gradients(case, problem, route=route)
            loss = case.objective(problem, route=route)(*tensors.views, **tensors.brought)
            for got, want in zip(torch.autograd.grad(1024 * loss, tensors.leaves), gradients, strict=True):
                torch.testing.assert_close(got, 1024 * want)


@pytest.mark.parametrize("pairing", PAIRINGS)
@every_route
def test_a_second_derivative_is_refused_rather_than_wrong(pairing: str, route: str) -> None:
    z = [x.clone().requires_grad_() for x in Z]
    loss = flatclr.InfoNCE(pairing=pairing, route=route)(*z, labels=LABELS)
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(loss, z, create_graph=True)


@every_route
def test_a_beta_changed_before_backward_is_noticed(route: str) -> None:
    z, beta = [x.clone().requires_grad_() for x in Z], torch.tensor(2.0)
    stats = flatclr.contrast_stats(*z, inverse_temperature=beta, labels=LABELS, route=route)
    loss = stats.info_nce.mean()
    beta.mul_(5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
