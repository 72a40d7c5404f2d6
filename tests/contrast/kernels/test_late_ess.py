"""The ESS that Triton's routes measure when it is read: once, of what was contrasted, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import flatclr
from flatclr.contrast import route as routes
from tests.support.interpreter import interpreted

pytest.importorskip("triton")

pytestmark = interpreted


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(9, 5), torch.randn(9, 5), torch.randn(4, 5)


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
    with pytest.raises(RuntimeError, match="the ESS must be read before embeddings, queue, temperature or"):
        _ = stats.ess


@pytest.mark.parametrize("changed", ["labels", "ids", "hard negatives"])
def test_labels_that_have_changed_since_are_those_of_the_call_and_changed_hard_negatives_are_refused(
    changed: str,
) -> None:
    """A buffer that is filled anew in every step."""
    z_a, z_b, _ = batch()
    labels, ids, hard = torch.arange(9) // 2, torch.arange(9), torch.randn(9, 3, 5)
    said: Any = {"labels": labels, "ids": ids, "hard_negatives": hard, "normalize": False, "route": "strips"}
    stats = flatclr.contrast_stats(z_a, z_b, inverse_temperature=1.0, **said)
    early = flatclr.contrast_stats(z_a, z_b, inverse_temperature=1.0, with_ess=True, **said)
    {"labels": labels, "ids": ids, "hard negatives": hard}[changed].fill_(2)
    if changed == "hard negatives":
        with pytest.raises(RuntimeError, match=r"or hard negatives are changed, or the tensor .* not after"):
            _ = stats.ess
    else:
        assert torch.equal(stats.ess, early.ess)


def _counted(reduce: Callable[..., Any], passes: list[int]) -> Callable[..., Any]:
    def counted(*arguments: Any, **options: Any) -> Any:
        found = reduce(*arguments, **options)
        passes.extend([1] if found is not None else [])
        return found

    return counted


def test_passes_are_as_many_as_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    z_a, z_b, _ = batch()
    passes: list[int] = []
    for name in ("reduce_streamed", "reduce_whole"):
        monkeypatch.setattr(routes, name, _counted(getattr(routes, name), passes))
    flatclr.InfoNCE(0.1, route="fused")(z_a, z_b)
    assert len(passes) == 1
    flatclr.InfoNCE(0.1, route="fused").with_stats(z_a, z_b)
    assert len(passes) == 2
    stats = flatclr.contrast_stats(z_a, z_b, inverse_temperature=5.0, route="fused")
    for _ in range(3):
        _ = stats.ess
    assert len(passes) == 4
