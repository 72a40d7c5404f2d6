"""FlatNCE, InfoNCE and the Hölder means: what tells them apart, and where they meet."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.objectives.nce import flat_nce, info_nce
from tests.support import oracles
from tests.support.harness import CASES, Batch, every_pairing, loss_and_gradients


@every_pairing
def test_flat_nce_gradient_equals_the_importance_weighted_form(pairing: str) -> None:
    batch = Batch.random(6, 4, pairing=pairing, queue=3)
    unit = Batch(oracles.normalized(batch.z_a), oracles.normalized(batch.z_b), batch.queue, pairing)
    z_a, z_b, queue = unit.tensors()
    loss = flatclr.FlatNCE(0.2, pairing=pairing)(z_a, z_b, negatives=queue)
    got = torch.autograd.grad(loss, (z_a, z_b))
    for gradient, want, z in zip(
        got, oracles.flat_nce_gradient(unit.z_a, unit.z_b, 5.0, pairing, unit.queue), (unit.z_a, unit.z_b), strict=True
    ):
        tangent = want - z * (z * want).sum(1, keepdims=True)  # the part along the sphere
        np.testing.assert_allclose(gradient.numpy(), tangent, rtol=1e-10, atol=1e-12)


def test_flat_nce_weights_do_not_depend_on_the_positive() -> None:
    scores = torch.randn(4, 9, dtype=torch.float64)
    for shift in (0.0, 50.0):
        moved = (scores + shift * torch.eye(4, 9)).requires_grad_()
        (gradient,) = torch.autograd.grad(flat_nce(flatclr.stats_from_scores(moved)).sum(), moved)
        negatives = scores.clone().fill_diagonal_(-torch.inf).softmax(1)
        torch.testing.assert_close(gradient, negatives - torch.eye(4, 9))


def test_info_nce_starves_when_the_positive_wins_and_flat_nce_does_not() -> None:
    scores = (30 * torch.eye(4, 8, dtype=torch.float64)).requires_grad_()
    stats = flatclr.stats_from_scores(scores)
    (starved,) = torch.autograd.grad(info_nce(stats).mean(), scores, retain_graph=True)
    (fed,) = torch.autograd.grad(flat_nce(stats).mean(), scores)
    assert starved.norm() < 1e-11
    assert fed.norm() > 0.5


def test_holder_gamma_one_is_flat_nce() -> None:
    batch = Batch.random(6, 4)
    cases = {case.name: case for case in CASES}
    for got, want in zip(
        loss_and_gradients(cases["holder_1"], batch), loss_and_gradients(cases["flat_nce"], batch), strict=True
    ):
        torch.testing.assert_close(got, want)


def test_holder_limits_are_approached_by_large_and_small_gamma() -> None:
    batch = Batch.random(6, 4)
    z_a, z_b, _ = batch.tensors()

    def gradient(gamma: float) -> Tensor:
        return torch.autograd.grad(flatclr.HolderFlatNCE(0.3, gamma=gamma)(z_a, z_b), z_a)[0]

    for near, limit in ((1e-6, 0.0), (2000.0, math.inf), (-2000.0, -math.inf)):
        torch.testing.assert_close(gradient(near), gradient(limit), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("gamma", [1e-300, 1e-13, 1e13, 1e300, -1e300])
def test_every_order_of_the_holder_mean_is_finite_in_float32(gamma: float) -> None:
    z_a, z_b, _ = Batch.random(5, 4).tensors(torch.float32)
    loss = flatclr.HolderFlatNCE(0.1, gamma=gamma)(z_a, z_b)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, z_a)[0].isfinite().all()
