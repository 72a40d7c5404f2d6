"""Properties that hold for every batch."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as hnp
from torch import Tensor

import flatclr
from flatclr.objectives.nce import flat_nce, info_nce
from flatclr.objectives.variational import dv, flo, nwj
from tests.support.harness import CASES, IN_TURN, Batch, Case, every_case

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(2, 9)
SYMMETRIC = [case for case in CASES if case.name not in ("flo_module",)]


def loss_of(case: Case, batch: Batch, order: Tensor | None = None, swap: bool = False) -> tuple[Tensor, Tensor]:
    z_a, z_b, _ = batch.tensors()
    if order is not None:
        z_a, z_b = z_a.detach()[order].requires_grad_(), z_b.detach()[order].requires_grad_()
    views = (z_b, z_a) if swap else (z_a, z_b)
    loss = case.objective(batch)(*views)
    return loss.detach(), torch.autograd.grad(loss, z_a)[0]


@every_case
@IN_TURN
@given(seed=seeds, pairs=sizes)
def test_the_order_of_the_batch_does_not_matter(case: Case, seed: int, pairs: int) -> None:
    batch = Batch.random(pairs, 4, pairing=case.pairing, seed=seed)
    order = torch.randperm(pairs, generator=torch.Generator().manual_seed(seed))
    loss, gradient = loss_of(case, batch)
    permuted_loss, permuted_gradient = loss_of(case, batch, order)
    torch.testing.assert_close(permuted_loss, loss, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(permuted_gradient, gradient[order], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("case", SYMMETRIC, ids=lambda case: case.name)
@IN_TURN
@given(seed=seeds, pairs=sizes)
def test_swapping_the_views_does_not_matter(case: Case, seed: int, pairs: int) -> None:
    batch = Batch.random(pairs, 4, pairing=case.pairing, seed=seed)
    for got, want in zip(loss_of(case, batch, swap=True), loss_of(case, batch), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@IN_TURN
@given(seed=seeds, pairs=sizes, scale=st.floats(1e-3, 1e3))
def test_the_length_of_embeddings_does_not_matter_on_the_sphere(seed: int, pairs: int, scale: float) -> None:
    batch = Batch.random(pairs, 4, seed=seed)
    longer = Batch(scale * batch.z_a, batch.z_b / scale, None, "two_view")
    for case in CASES:
        if not case.normalize:
            continue
        z_a, z_b, _ = longer.tensors()
        loss = case.objective(batch)(z_a, z_b)
        expected, gradient = loss_of(case, batch)
        torch.testing.assert_close(loss.detach(), expected, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(torch.autograd.grad(loss, z_a)[0] * scale, gradient, rtol=1e-7, atol=1e-9)


scores = hnp.arrays(np.float64, st.tuples(st.integers(2, 6), st.integers(6, 8)), elements=st.floats(-50, 50))


@given(scores=scores, shift=st.floats(-100, 100))
def test_a_shift_of_all_scores_moves_no_normalised_loss(scores: np.ndarray, shift: float) -> None:
    here, there = (flatclr.stats_from_scores(torch.tensor(s)) for s in (scores, scores + shift))
    u = torch.zeros(len(scores), dtype=torch.float64)
    for loss in (info_nce, flat_nce, dv, lambda s: flo(s, u)):
        torch.testing.assert_close(loss(there), loss(here), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(there.ess, here.ess)


@given(scores=scores)
def test_info_nce_bound_never_exceeds_log_k(scores: np.ndarray) -> None:
    stats = flatclr.stats_from_scores(torch.tensor(scores))
    assert stats.mi_nats.item() <= math.log(scores.shape[1]) + 1e-12
    assert (stats.info_nce >= 0).all()


@given(scores=scores)
def test_ess_is_between_one_negative_and_all_of_them(scores: np.ndarray) -> None:
    stats = flatclr.stats_from_scores(torch.tensor(scores))
    assert (stats.ess >= 1 / stats.negatives - 1e-12).all()
    assert (stats.ess <= 1).all()


@given(seed=seeds, dtype=st.sampled_from([torch.float32, torch.float64]), scale=st.sampled_from([1e2, 1e4, 1e6]))
def test_extreme_scores_give_finite_losses_and_gradients(seed: int, dtype: torch.dtype, scale: float) -> None:
    matrix = (scale * torch.randn(4, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)).requires_grad_()
    stats = flatclr.stats_from_scores(matrix)
    for loss in (info_nce, flat_nce, dv, nwj, lambda s: flo(s, -s.positive)):
        value = loss(stats).mean()
        (gradient,) = torch.autograd.grad(value, matrix, retain_graph=True)
        assert value.isfinite()
        assert gradient.isfinite().all()


@every_case
@IN_TURN
@given(seed=seeds, aligned=st.booleans())
def test_a_temperature_of_a_thousandth_stays_finite(case: Case, seed: int, aligned: bool) -> None:
    """In float32, for objectives that have a temperature; others are as they are."""
    objective = case.build(pairing=case.pairing)
    if type(objective).traits_with(kernel=getattr(objective, "kernel", None)).temperature is not None:
        objective = case.build(pairing=case.pairing, temperature=1e-3)
        assert objective.inverse_temperature == pytest.approx(1000)
    generator = torch.Generator().manual_seed(seed)
    z_a = torch.randn(5, 4, generator=generator).requires_grad_()
    z_b = (z_a.detach() if aligned else -z_a.detach()).requires_grad_()
    loss = objective(z_a, z_b)
    assert loss.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, (z_a, z_b)))
