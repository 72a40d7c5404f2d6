"""Any number of views, labels, ids, hard negatives and a margin: every number of every anchor against pair loops."""

from __future__ import annotations

import copy
import math
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import flatclr
from flatclr.contrast.kernels import tiled_torch
from flatclr.contrast.related import Positives
from tests.support import relation_oracles as ro
from tests.support.oracles import logsumexp
from tests.support.relation_harness import (
    PAIRINGS,
    RELATIONS,
    ROUTES,
    Tensors,
    options_of,
    problem_of,
    stats_of,
)

every_pairing = pytest.mark.parametrize("pairing", PAIRINGS)
every_relation = pytest.mark.parametrize("relation", RELATIONS.values(), ids=RELATIONS)
every_route = pytest.mark.parametrize("route", ROUTES)
# eight views with a few relations only: that their number makes no difference is said by three
SIZES = [(v, name) for v in (2, 3) for name in RELATIONS] + [(8, n) for n in ("views", "labels_and_ids", "everything")]
CLOSE = {"rtol": 1e-11, "atol": 1e-11}
BETA = 3.0


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_torch, "tile_edge", lambda device: 5)


def require_equal(stats: flatclr.ContrastStats, anchors: list[ro.Anchor], *, chosen: bool) -> None:
    """Every number of the stats is the oracle's."""
    per_anchor = {
        "positive": lambda a: ro.average(a.positives),
        "positive_logsumexp": lambda a: logsumexp(a.positives),
        "negative_logsumexp": lambda a: logsumexp(a.negatives),
        "gap": ro.gap,
        "ess": ro.ess,
        "info_nce": ro.info_nce,
    }
    for name, function in per_anchor.items():
        got, want = getattr(stats, name).detach(), ro.per_anchor(anchors, function)
        np.testing.assert_allclose(got, want, err_msg=name, **CLOSE)
    for name, counts in (
        ("negatives", [len(a.negatives) for a in anchors]),
        ("positives", [len(a.positives) for a in anchors]),
    ):
        np.testing.assert_array_equal(np.broadcast_to(np.asarray(getattr(stats, name)), len(anchors)), counts)
    counted = [a.counts for a in anchors]
    assert stats.counted is None or stats.counted.tolist() == counted
    assert all(counted) or stats.counted is not None
    assert int(stats.left_out) == counted.count(False)
    assert float(stats.ceiling_nats) == pytest.approx(ro.ceiling_nats(anchors), rel=1e-12)
    mean_loss = ro.mean(anchors, ro.info_nce)
    assert stats.mean(stats.info_nce).item() == pytest.approx(mean_loss, rel=1e-11)
    if chosen:
        assert stats.mi_nats.isnan()
    else:
        assert stats.mi_nats.item() == pytest.approx(ro.ceiling_nats(anchors) - mean_loss, rel=1e-10, abs=1e-10)


def chosen(problem: ro.Problem) -> bool:
    return any(x is not None for x in (problem.labels, problem.ids, problem.hard, problem.margin))


@every_pairing
@pytest.mark.parametrize(("views", "relation"), SIZES)
@every_route
def test_every_number_equals_the_pair_loop(pairing: str, views: int, relation: str, route: str) -> None:
    problem = problem_of(views, pairing=pairing, **RELATIONS[relation])
    stats = stats_of(problem, BETA, route=route)
    assert stats.route == route
    require_equal(stats, ro.anchors_of(problem, BETA), chosen=chosen(problem))


@every_pairing
@every_relation
@pytest.mark.parametrize("views", [2, 3])
def test_drawing_all_negatives_is_the_full_set(pairing: str, relation: dict[str, Any], views: int) -> None:
    problem = problem_of(views, pairing=pairing, **relation)
    available = len(ro.groups(pairing, views)[0][1]) * 5 * problem.in_batch
    available += 0 if problem.queue is None else len(problem.queue)
    if available == 0:
        pytest.skip("there is nothing to draw")
    stats = stats_of(problem, BETA, negatives_per_anchor=available)
    require_equal(stats, ro.anchors_of(problem, BETA), chosen=chosen(problem))


@every_pairing
@pytest.mark.parametrize("relation", [RELATIONS[n] for n in ("some_labels", "queue_with_ids", "margin", "everything")])
def test_a_drawn_negative_is_one_of_the_anchors_negatives(pairing: str, relation: dict[str, Any]) -> None:
    """Of one drawn negative the log-sum-exp is its score; hard negatives come on top, so they are left out here."""
    problem = replace(problem_of(3, pairing=pairing, **relation), hard=None)
    anchors, seen = ro.anchors_of(replace(problem, margin=None), BETA), set()
    with_margin = ro.anchors_of(problem, BETA)
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        stats = stats_of(problem, BETA, negatives_per_anchor=1, generator=generator)
        for i, (score, anchor) in enumerate(zip(stats.negative_logsumexp.tolist(), anchors, strict=True)):
            if math.isnan(score):  # the margin left the one that was drawn out
                assert len(with_margin[i].negatives) < len(anchor.negatives)
            else:
                found = np.flatnonzero(np.isclose(with_margin[i].negatives, score, rtol=0, atol=1e-10))
                assert len(found) == 1
                seen.add((i, int(found[0])))
    assert len(seen) > 0.6 * sum(len(a.negatives) for a in with_margin)  # every negative is drawn now and then


def test_hard_negatives_come_on_top_of_drawn_ones() -> None:
    problem = problem_of(3, hard=2)
    stats = stats_of(problem, BETA, negatives_per_anchor=4)
    assert stats.negatives == 6


@pytest.mark.parametrize("labels", [[2] * 6, [0, 0, 0, 1, 1, 1]])
@every_pairing
@pytest.mark.parametrize("route", ["auto", *ROUTES])
def test_a_batch_of_one_label_is_an_error(labels: list[int], pairing: str, route: str) -> None:
    problem = problem_of(3, pairing=pairing, labels=labels)
    if len(set(labels)) > 1:
        stats_of(problem, BETA, route=route)
        return
    with pytest.raises(ValueError, match="at least one anchor must have a negative"):
        stats_of(problem, BETA, route=route)
    with pytest.raises(ValueError, match="at least one anchor must have a negative"):
        flatclr.pairwise_mean(
            *Tensors.of(problem).views,
            phi=flatclr.Phi("one", lambda s: 1.0, lambda s: 0.0),
            labels=torch.tensor(labels),
            route=route,
            pairing=pairing,
        )


@every_pairing
@every_route
@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("relation", [RELATIONS[n] for n in ("views", "some_labels", "everything")])
def test_each_anchor_may_have_its_own_temperature(
    pairing: str, route: str, views: int, relation: dict[str, Any]
) -> None:
    problem = problem_of(views, pairing=pairing, **relation)
    betas = np.linspace(0.5, 6.0, 6 * len(ro.groups(pairing, views)))
    stats = stats_of(problem, torch.tensor(betas), route=route)
    require_equal(stats, ro.anchors_of(problem, betas), chosen=chosen(problem))


@every_pairing
@every_relation
@every_route
def test_pairwise_mean_equals_the_pair_loop(pairing: str, relation: dict[str, Any], route: str) -> None:
    problem = problem_of(3, pairing=pairing, **relation)
    tensors = Tensors.of(problem)
    cube = flatclr.Phi("cube", value=lambda s: s**3 + 1, derivative=lambda s: 3 * s**2)
    got = flatclr.pairwise_mean(
        *tensors.views, phi=cube, inverse_temperature=0.7, route=route, **options_of(problem), **tensors.brought
    )
    want = ro.per_anchor(ro.anchors_of(problem, 0.7), lambda a: ro.average(a.negatives, lambda s: s**3 + 1))
    np.testing.assert_allclose(got.detach(), want, **CLOSE)


def test_the_margin_is_measured_from_the_mean_of_all_positives() -> None:
    """Label positives move the mean, and with it what counts as a false negative."""
    problem = problem_of(2, labels=[0, 0, 1, 1, 2, 2], margin=0.0)
    alone = replace(problem, labels=None)
    kept = [[len(a.negatives) for a in ro.anchors_of(p, 1.0)] for p in (problem, alone)]
    assert kept[0] != kept[1]
    for p in (problem, alone):
        got = stats_of(p, BETA).negatives
        assert isinstance(got, torch.Tensor)
        assert got.tolist() == [len(a.negatives) for a in ro.anchors_of(p, 1.0)]


def test_the_positive_that_ids_leave_of_a_large_label_keeps_its_precision() -> None:
    samples = 4000
    z = torch.randn(2, samples, 8, generator=torch.Generator().manual_seed(0)) + 3
    ids = torch.zeros(samples, dtype=torch.long)
    ids[-1] = 1  # all others are duplicates of each other
    pairs = flatclr.PairSet.of(z, labels=torch.zeros_like(ids), ids=ids, pairing="one_way")
    unit = torch.nn.functional.normalize(z.double(), dim=2)
    other, last = (unit[0, :-1] * unit[1, :-1]).sum(1), unit[0, :-1] @ unit[1, -1]
    torch.testing.assert_close(pairs.positive(5.0)[:-1].double(), 5 * (other + last) / 2, rtol=1e-6, atol=0)


def test_info_nce_of_labels_does_not_pay_for_the_mean_of_its_positives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loss looks at each positive alone; who reads the mean still gets it, with its gradient."""
    views = [x.requires_grad_() for x in torch.randn(2, 6, 4, dtype=torch.float64)]
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    stats = flatclr.contrast_stats(*views, labels=labels, inverse_temperature=3.0)
    cosines = torch.stack([torch.nn.functional.normalize(x, dim=1) for x in views]).flatten(0, 1)
    of_label = labels.repeat(2).unsqueeze(1) == labels.repeat(2)
    means = (3 * (cosines @ cosines.T) * of_label.fill_diagonal_(False)).sum(1) / of_label.sum(1)
    torch.testing.assert_close(stats.positive, means)
    for mine, theirs in zip(
        torch.autograd.grad(stats.positive.square().sum(), views, retain_graph=True),
        torch.autograd.grad(means.square().sum(), views),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)

    def refuse(_: Positives) -> None:
        raise AssertionError("the mean was measured")

    monkeypatch.setattr(Positives, "_score_of_label", refuse)
    loss = flatclr.InfoNCE(1 / 3)(*views, labels=labels)
    torch.testing.assert_close(loss, stats.info_nce.mean())
    loss.backward()


@pytest.mark.parametrize("labels", [None, torch.tensor([0, 0, 1, 1, 2, 2])], ids=["views", "labels"])
@every_route
def test_what_changes_after_the_call_does_not_change_the_stats(labels: torch.Tensor | None, route: str) -> None:
    """An optimizer steps the temperature in place, a buffer of embeddings is filled anew."""
    known = {} if labels is None else {"labels": labels}
    views, beta = torch.randn(3, 6, 4).unbind(), torch.tensor(3.0)
    want = flatclr.contrast_stats(*views, inverse_temperature=3.0, route=route, **known)
    means, gaps, losses = want.positive, want.gap, want.info_nce
    late = flatclr.contrast_stats(*views, inverse_temperature=beta, route=route, **known)
    quiet = flatclr.contrast_stats(*views, inverse_temperature=beta, route=route, **known).detach()
    beta.mul_(2)
    assert torch.equal(late.info_nce, losses)
    for view in views:
        view.neg_()
    for stats in (late, quiet):
        assert torch.equal(stats.positive, means)
        assert torch.equal(stats.gap, gaps)
        if labels is None or route == "dense":
            assert torch.equal(stats.info_nce, losses)
        else:  # another pass over pairs
            with pytest.raises(RuntimeError, match=r"must be read before embeddings are changed, or .* not after"):
                _ = stats.info_nce


@pytest.mark.parametrize("learned", [False, True], ids=["", "learned temperature"])
@pytest.mark.parametrize("labels", [None, torch.tensor([0, 0, 1, 1, 2, 2])], ids=["views", "labels"])
@every_route
def test_detached_stats_keep_no_graph(labels: torch.Tensor | None, learned: bool, route: str) -> None:
    """Else who logs stats and makes no backward pass keeps what the encoder saved."""
    hidden, warm = 2 * torch.randn(3, 6, 4, requires_grad=True), 2 * torch.ones((), requires_grad=True)
    gone = [weakref.ref(x) for x in (hidden, warm)]  # which their squares save for the gradient
    known = {} if labels is None else {"labels": labels}
    scale = warm.square() if learned else 4.0
    stats = flatclr.contrast_stats(*hidden.square().unbind(), inverse_temperature=scale, route=route, **known).detach()
    del hidden, warm, scale
    assert [kept() for kept in gone] == [None, None]
    torch.testing.assert_close(copy.deepcopy(stats).info_nce, stats.info_nce)
    if labels is not None and route != "dense":
        stats.each_positive.batch.views[0].zero_()
        with pytest.raises(RuntimeError, match="must be read before"):
            _ = copy.deepcopy(stats).info_nce


@every_route
def test_the_sums_of_labels_are_made_once_for_a_margin_and_the_stats(
    route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums, score_of_label = [], Positives._score_of_label

    def counted(self: Positives) -> torch.Tensor:
        sums.append(1)
        return score_of_label(self)

    monkeypatch.setattr(Positives, "_score_of_label", counted)
    flatclr.FlatNCE(0.5, route=route, false_negative_margin=0.5)(
        *torch.randn(2, 6, 4, requires_grad=True).unbind(), labels=torch.tensor([0, 0, 1, 1, 2, 2])
    ).backward()
    assert len(sums) == 1


@pytest.mark.filterwarnings("ignore")  # torch's compiler has much to say
@every_route
def test_stats_of_a_compiled_function_are_read_outside_it(route: str) -> None:
    z, labels = torch.randn(3, 6, 4), torch.tensor([0, 0, 1, 1, 2, 2])

    def call(z: torch.Tensor) -> flatclr.ContrastStats:
        return flatclr.contrast_stats(*z.unbind(), inverse_temperature=2.0, labels=labels, route=route)

    torch.testing.assert_close(torch.compile(call, backend="eager")(z).info_nce, call(z).info_nce)


@pytest.mark.parametrize("name", ["positive", "gap", "info_nce", "positive_logsumexp", "negative_logsumexp"])
@pytest.mark.parametrize("relation", ["views", "everything"])
@every_route
def test_stats_made_without_a_graph_have_none_when_they_are_read(relation: str, route: str, name: str) -> None:
    tensors = Tensors.of(problem_of(3, **RELATIONS[relation]))
    beta = torch.tensor(2.0, requires_grad=True)
    with torch.no_grad():
        stats = flatclr.contrast_stats(*tensors.views, inverse_temperature=beta, route=route, **tensors.brought)
    assert not getattr(stats, name).requires_grad
