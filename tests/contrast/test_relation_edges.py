"""Where relations leave little: anchors without negatives, counts that differ, views in another order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import flatclr
from flatclr.contrast import batch, related
from flatclr.contrast.kernels import tiled_torch
from flatclr.objectives import f_micl_gaussian, find_divergence
from flatclr.objectives.nce import holder_log_mean
from tests.support import relation_oracles as ro
from tests.support.relation_harness import ROUTES, OrderedU, Tensors, options_of, problem_of, stats_of

every_route = pytest.mark.parametrize("route", ROUTES)


def test_logarithms_of_counts_are_as_precise_as_the_sums() -> None:
    problem = problem_of(3, labels=[0, 1, 1, 0, 1, 1])
    stats, anchors = stats_of(problem, 3.0), ro.anchors_of(problem, 3.0)
    for name, counts in (
        ("log_negatives", [len(a.negatives) for a in anchors]),
        ("log_positives", [len(a.positives) for a in anchors]),
    ):
        got = getattr(stats, name)
        assert got.dtype == torch.float64
        assert got.tolist() == pytest.approx([math.log(count) for count in counts], rel=1e-15)
    pairs = [s for a in anchors for s in a.negatives]
    partition = math.log(sum(math.exp(s) for s in pairs) / len(pairs))
    assert stats.log_partition.item() == pytest.approx(partition, rel=1e-14)


@every_route
@pytest.mark.parametrize(
    "objective", [flatclr.SupCon, flatclr.FLO, lambda **o: flatclr.SupCon(position="inside", **o)], ids=range(3)
)
def test_the_nan_of_an_anchor_without_negatives_does_not_come_back(
    objective: type[flatclr.Objective], route: str
) -> None:
    problem = problem_of(2, pairing="one_way", margin=-1.3)
    assert 0 < len(ro.counted(ro.anchors_of(problem, 1.0))) < 6
    tensors, module = Tensors.of(problem), objective(route=route, **options_of(problem)).double()
    loss = module(*tensors.views)
    assert loss.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, [*tensors.views, *module.parameters()]))


@every_route
def test_an_anchor_without_negatives_is_not_aligned_either(route: str) -> None:
    problem = problem_of(2, pairing="one_way", margin=-1.3)
    anchors, tensors = ro.anchors_of(problem, 1.0), Tensors.of(problem)
    left_out = [n for n, anchor in enumerate(anchors) if not anchor.counts]
    assert left_out
    loss = flatclr.AlignUniform(route=route, **options_of(problem))(*tensors.views)
    weights = {"alpha": 2.0, "t": 2.0, "align_weight": 1.0, "uniform_weight": 1.0}
    assert loss.item() == pytest.approx(ro.align_uniform(anchors, **weights), rel=1e-12)
    assert (torch.autograd.grad(loss, tensors.views[0])[0][left_out] == 0).all()


@every_route
def test_a_view_without_negatives_is_left_out_of_the_uniformity(route: str) -> None:
    problem = problem_of(2, samples=4, pairing="within", margin=0.2)
    views = torch.tensor(problem.views, requires_grad=True)
    with torch.no_grad():  # one point in the second view: every negative is above the positive
        views[1] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        views[0, :, 0] = -1.0
    moved = problem.moved(views.detach().numpy())
    anchors = ro.anchors_of(moved, 1.0)
    assert {anchor.group for anchor in ro.counted(anchors)} == {0}
    loss = flatclr.AlignUniform(route=route, **options_of(moved))(views)
    weights = {"alpha": 2.0, "t": 2.0, "align_weight": 1.0, "uniform_weight": 1.0}
    assert loss.item() == pytest.approx(ro.align_uniform(anchors, **weights), rel=1e-12)
    assert torch.autograd.grad(loss, views)[0].isfinite().all()


def test_u_is_called_on_pairs_of_views_in_their_order_whatever_else_is_said() -> None:
    z_a, z_b, _ = Tensors.of(problem_of(3)).views
    objective = flatclr.FLO(0.3, u=OrderedU()).double()
    loss = objective(z_a, z_b)
    torch.testing.assert_close(objective(z_a, z_b, ids=torch.arange(6)), loss)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(objective(z_b, z_a, ids=torch.arange(6)), loss)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
@every_route
def test_samples_that_coincide_with_others_of_their_label_are_not_torn_apart(alpha: float, route: str) -> None:
    z = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    z[1] = z[0]
    z_a, z_b = z.clone().requires_grad_(), z.clone().requires_grad_()
    objective = flatclr.AlignUniform(alpha=alpha, uniform_weight=0.0, pairing="views", route=route)
    loss = objective(z_a, z_b, labels=torch.tensor([0, 0, 1, 1, 2, 2]))
    assert torch.autograd.grad(loss, z_a)[0].abs().max() < 1


@pytest.mark.parametrize("gamma", [0.0, 2.0, math.inf, -math.inf])
@pytest.mark.parametrize("relation", [{}, {"labels": [0, 0, 1, 1, 2, 2]}, {"hard": 2}], ids=["views", "labels", "hard"])
@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("drawn", [False, True])
def test_every_order_of_the_holder_mean_takes_temperatures_per_anchor(
    gamma: float, relation: dict[str, Any], views: int, drawn: bool
) -> None:
    problem = problem_of(views, **relation)
    betas = np.linspace(0.5, 4.0, 6 * views)
    tensors, more = Tensors.of(problem), {"negatives_per_anchor": 5 * views} if drawn else {}
    pairs = flatclr.PairSet.of(*tensors.views, **options_of(problem), **tensors.brought, **more)
    got = holder_log_mean(pairs, torch.tensor(betas), gamma)
    np.testing.assert_allclose(got.detach(), ro.per_anchor(ro.anchors_of(problem, betas), ro.holder(gamma)), rtol=1e-10)


def test_f_micl_refuses_temperatures_per_anchor() -> None:
    pairs = flatclr.PairSet.of(torch.randn(4, 3), torch.randn(4, 3))
    with pytest.raises(ValueError, match="inverse_temperature of f-MICL must be one value, got 8"):
        f_micl_gaussian(pairs, torch.ones(8), find_divergence("js"))


@pytest.mark.parametrize("objective", [flatclr.RPC, flatclr.FMICL, flatclr.InfoNCE, flatclr.AlignUniform])
@pytest.mark.parametrize("where", ["view", "queue", "hard"])
def test_a_nan_embedding_is_not_taken_for_an_anchor_without_negatives(
    objective: type[flatclr.Objective], where: str
) -> None:
    z_a, z_b, queue, hard = torch.randn(6, 4), torch.randn(6, 4), torch.randn(3, 4), torch.randn(6, 2, 4)
    {"view": z_b, "queue": queue, "hard": hard[2]}[where][2 if where == "view" else 0] = torch.nan
    z_a.requires_grad_()
    loss = objective()(
        z_a,
        z_b,
        negatives=queue,
        hard_negatives=hard,
        ids=torch.tensor([0, 1, 2, 2, 0, 1]),
        negative_ids=torch.arange(3),
    )
    assert loss.isnan()
    assert torch.autograd.grad(loss, z_a)[0].isnan().any()


ROOT = flatclr.Phi("root", value=torch.sqrt, derivative=lambda s: 0.5 / s.sqrt())  # NaN below 0


@every_route
def test_a_nan_of_the_function_stays_a_nan(route: str) -> None:
    z_a = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [-0.1, 1.0]])
    pairs = flatclr.PairSet.of(z_a, z_a, ids=torch.tensor([0, 1, 1, 2]), pairing="one_way", route=route)
    _, roots = pairs.mean_phi(ROOT, 1.0)
    assert roots.isnan().tolist() == [True, False, False, True]
    assert pairs.mean(roots).isnan()
    assert pairs.mean(roots.nan_to_num()).isfinite()


@every_route
@pytest.mark.parametrize("hardest", [True, False])
@pytest.mark.parametrize("where", ["view", "hard"])
def test_a_nan_is_never_passed_over_in_search_of_the_hardest(
    where: str, hardest: bool, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled_torch, "tile_edge", lambda device: 2)
    z, hard = torch.randn(2, 6, 4), torch.randn(6, 2, 4)
    (z if where == "view" else hard)[1, 0] = torch.nan
    pairs = flatclr.PairSet.of(z, hard_negatives=hard, ids=torch.tensor([0, 1, 2, 2, 3, 0]), route=route)
    extremes = pairs.extreme_negative(1.0, hardest=hardest)
    # row 0 of the second view is no negative of samples 0 and 5
    touched = [n not in (0, 5) for n in range(6)] if where == "view" else [n == 1 for n in range(6)]
    touched_anchors = [*touched, *touched]
    touched_anchors[6] |= where == "view"  # its own anchor
    assert extremes.isnan().tolist() == touched_anchors
    assert pairs.mean(extremes).isnan()


@every_route
@pytest.mark.parametrize("asked", ["nothing", "mean_phi", "hardest"])
@pytest.mark.parametrize("said", [{"margin": -1.3}, {"labels": [0, 0, 0, 0, 0, 1], "ids": [5, 6, 7, 8, 9, 5]}, {}])
def test_a_pair_set_says_which_anchors_have_negatives(said: dict[str, Any], asked: str, route: str) -> None:
    problem = problem_of(2, pairing="one_way", **said)
    tensors = Tensors.of(problem)
    pairs = flatclr.PairSet.of(*tensors.views, route=route, **options_of(problem), **tensors.brought)
    if asked == "mean_phi":
        pairs.mean_phi(flatclr.Phi("one", value=lambda s: 1.0, derivative=lambda s: 0.0), 2.0)
    elif asked == "hardest":
        pairs.extreme_negative(2.0, hardest=True)
    expected = [anchor.counts for anchor in ro.anchors_of(problem, 1.0)]
    assert (pairs.counted is None) if not said else (pairs.counted is not None and pairs.counted.tolist() == expected)
    kept = [n for n, counts in enumerate(expected) if counts]
    assert pairs.mean(torch.arange(6.0)).item() == pytest.approx(sum(kept) / len(kept))


@every_route
@pytest.mark.parametrize(
    "objective", [flatclr.SupCon, flatclr.RPC, lambda **o: flatclr.HolderFlatNCE(gamma=math.inf, **o)]
)
def test_a_device_is_never_waited_for_to_count_negatives(
    objective: Any, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors of the device "meta" have no values: to look at one is an error."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # it does not know this device
    monkeypatch.setattr(batch, "_fit_together", lambda *_: True)  # nor may embeddings be there
    views, labels = torch.empty(3, 8, 4, device="meta"), torch.empty(8, dtype=torch.long, device="meta")
    assert objective(route=route)(views, labels=labels, ids=labels).shape == ()


@every_route
def test_the_loss_of_a_batch_without_negatives_is_nan_where_nobody_waits(
    route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(related, "require_some", lambda counted: counted)
    z, labels = torch.randn(2, 4, 3), torch.zeros(4, dtype=torch.long)
    for objective in (flatclr.InfoNCE, flatclr.SupCon, flatclr.RPC):
        assert objective(route=route)(z, labels=labels).isnan()
