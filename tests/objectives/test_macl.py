"""MACL: a temperature that follows the alignment, and a value that never starves."""

import pytest
import torch

import flatclr
from tests.support import field_oracles, oracles
from tests.support.harness import Batch


def test_the_temperature_follows_the_alignment_of_the_positives(route: str) -> None:
    batch = Batch.random(6, 4)
    z_a, z_b, _ = batch.tensors()
    a, b = oracles.normalized(batch.z_a), oracles.normalized(batch.z_b)
    cosines = [float(x @ y) for x, y in zip(a, b, strict=True)]
    tau = field_oracles.macl_temperature(0.2, alpha=0.6, initial_alignment=0.1, cosines=cosines)
    moving = flatclr.MACL(0.2, alpha=0.6, initial_alignment=0.1, route=route)
    loss, stats = moving.with_stats(z_a, z_b)
    fixed = flatclr.MACL(tau, alpha=0.0, route=route)(z_a, z_b)
    torch.testing.assert_close(loss, fixed)
    torch.testing.assert_close(torch.autograd.grad(loss, z_a), torch.autograd.grad(fixed, z_a))  # tau gets none
    torch.testing.assert_close(stats.positive[:6], torch.tensor(cosines, dtype=torch.float64) / tau)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_value_is_finite_and_at_least_one_however_well_a_batch_is_solved(dtype: torch.dtype) -> None:
    gaps = torch.linspace(-300, 300, 2001, dtype=dtype)
    scores = torch.stack([torch.zeros_like(gaps), gaps], 1)
    values = torch.cat([flatclr.objectives.macl(flatclr.stats_from_scores(row.unsqueeze(0))) for row in scores])
    assert values.isfinite().all()
    assert (values >= 1).all()
    assert (values.diff() >= -1e-6 * values[1:]).all()  # it falls with the gap, also where the series takes over


@pytest.mark.parametrize(("alpha", "initial_alignment"), [(1.0, 0.0), (-0.1, 0.0), (0.6, 0.9)])
def test_a_temperature_that_could_reach_zero_is_refused(alpha: float, initial_alignment: float) -> None:
    with pytest.raises(ValueError, match="the temperature would not stay positive"):
        flatclr.MACL(alpha=alpha, initial_alignment=initial_alignment)
