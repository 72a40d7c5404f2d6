"""The ESS that Triton's routes measure when it is read: once, of what was contrasted, or not at all."""

from __future__ import annotations

import pytest
import torch

import flatclr
from flatclr.contrast import route as routes
from tests.support.interpreter import interpreted

pytest.importorskip("triton")

pytestmark = interpreted


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    z_a, z_b = torch.randn(2, 9, 5).unbind()
    return z_a, z_b, torch.randn(4, 5)


@pytest.mark.parametrize("route", ["fused", "strips"])
def test_it_is_that_of_the_same_pass(route: str) -> None:
    z_a, z_b, queue = batch()
    late, early = (
        flatclr.contrast_stats(z_a, z_b, inverse_temperature=5.0, negatives=queue, route=route, with_ess=with_ess)
        for with_ess in (False, True)
    )
    assert torch.equal(late.ess, early.ess)
    assert torch.equal(late.negative_logsumexp, early.negative_logsumexp)


@pytest.mark.parametrize("changed", ["view", "queue", "temperature"])
def test_it_is_refused_when_what_was_contrasted_has_changed(changed: str) -> None:
    (z_a, z_b, queue), beta = batch(), torch.tensor(5.0)
    stats = flatclr.contrast_stats(z_a, z_b, inverse_temperature=beta, negatives=queue, route="fused")
    {"view": z_b, "queue": queue, "temperature": beta}[changed].mul_(2)
    with pytest.raises(RuntimeError, match="the ESS must be read before embeddings, queue or temperature are changed"):
        _ = stats.ess


def test_passes_are_as_many_as_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    z_a, z_b, _ = batch()
    passes = []
    reduce = routes.reduce_streamed
    monkeypatch.setattr(routes, "reduce_streamed", lambda *a, **k: passes.append(1) or reduce(*a, **k))
    flatclr.InfoNCE(0.1, route="fused")(z_a, z_b)
    assert len(passes) == 1
    flatclr.InfoNCE(0.1, route="fused").with_stats(z_a, z_b)
    assert len(passes) == 2
    stats = flatclr.contrast_stats(z_a, z_b, inverse_temperature=5.0, route="fused")
    for _ in range(3):
        _ = stats.ess
    assert len(passes) == 4
