"""Drawn negatives: the same numbers on average, repeated by their generator."""

import math

import numpy as np
import pytest
import torch

import flatclr
from tests.support.harness import Batch, every_pairing


@pytest.mark.parametrize("kind", [flatclr.InfoNCE, flatclr.FlatNCE, flatclr.HolderFlatNCE])
def test_all_negatives_drawn_is_the_same_as_no_draw(kind: type[flatclr.Objective]) -> None:
    batch = Batch.random(5, 3, queue=4)
    z_a, z_b, queue = batch.tensors()
    full = kind(0.3)(z_a, z_b, negatives=queue)
    drawn = kind(0.3, negatives_per_anchor=12)(z_a, z_b, negatives=queue)
    torch.testing.assert_close(drawn, full)
    for got, want in zip(torch.autograd.grad(drawn, (z_a, z_b)), torch.autograd.grad(full, (z_a, z_b)), strict=True):
        torch.testing.assert_close(got, want)


@every_pairing
def test_k_negative_loss_averages_to_the_exhaustive_mean_over_subsets(pairing: str) -> None:
    """With k = 1 the expected loss is the mean over single negatives of log(1 + exp(s - p))."""
    batch = Batch.random(4, 3, pairing=pairing, queue=2)
    z_a, z_b, queue = batch.tensors()
    generator = torch.Generator().manual_seed(5)
    objective = flatclr.InfoNCE(0.5, negatives_per_anchor=1, generator=generator, pairing=pairing)
    draws = torch.stack([objective(z_a, z_b, negatives=queue) for _ in range(600)]).detach()
    expected = np.mean([np.log1p(np.exp(row.negatives - row.positive)).mean() for row in batch.rows(2.0)])
    standard_error = draws.std() / math.sqrt(len(draws))
    assert abs(draws.mean() - expected) < 4 * standard_error


def test_a_seeded_generator_repeats_its_draw() -> None:
    z_a, z_b, _ = Batch.random(8, 3).tensors()
    losses = [
        flatclr.InfoNCE(negatives_per_anchor=3, generator=torch.Generator().manual_seed(s))(z_a, z_b).item()
        for s in (1, 1, 2)
    ]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("asked", [{"route": "fused"}, {"route": "strips"}, {"backend": "triton"}], ids=str)
def test_drawn_negatives_refuse_a_route_that_would_not_run(asked: dict[str, str]) -> None:
    z = torch.randn(8, 4)
    with pytest.raises(ValueError, match="negatives_per_anchor must be left out with Triton's routes"):
        flatclr.InfoNCE(negatives_per_anchor=2, **asked)(z, z)  # type: ignore[arg-type]
