"""Where relations leave little: anchors without negatives, counts that differ, views in another order."""

from __future__ import annotations

import math

import pytest
import torch

import flatclr
from tests import relation_oracles as ro
from tests.relation_harness import ROUTES, Tensors, options_of, problem_of, stats_of

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
