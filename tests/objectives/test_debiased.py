"""The debiased loss: what its prior and its lower limit do."""

import torch

import flatclr
from tests.support.harness import Batch


def test_without_false_negatives_it_is_info_nce(route: str) -> None:
    z_a, z_b, _ = Batch.random(6, 4).tensors()
    debiased, plain = flatclr.Debiased(0.2, prior=0.0, route=route), flatclr.InfoNCE(0.2, route=route)
    torch.testing.assert_close(debiased(z_a, z_b), plain(z_a, z_b))
    for got, want in zip(
        *(torch.autograd.grad(f(z_a, z_b), (z_a, z_b)) for f in (debiased, plain)),
        strict=True,
    ):
        torch.testing.assert_close(got, want)


def test_a_row_at_the_lower_limit_pushes_no_negative() -> None:
    scores = torch.tensor([[5.0, -1.0, 0.5], [0.0, 0.0, 0.2]], dtype=torch.float64, requires_grad=True)
    losses = flatclr.objectives.debiased(flatclr.stats_from_scores(scores), 5.0, prior=0.1)
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    assert (gradient[0, 1:] == 0).all()  # 0.1 e^5 is more than the mean over its negatives
    assert gradient[0, 0] < 0
    assert gradient[1, 0] > 0
    assert gradient[1, 2] > 0


def test_a_larger_prior_pushes_less() -> None:
    z_a, z_b, _ = Batch.random(16, 8).tensors()
    losses = [flatclr.Debiased(0.5, prior=prior)(z_a, z_b).item() for prior in (0.0, 0.05, 0.1)]
    assert losses == sorted(losses, reverse=True)


def test_a_row_where_nothing_is_left_has_a_finite_gradient() -> None:
    """The mean of the negatives is the prior times the positive: what is left has no logarithm."""
    for beta in (5.0, 1000.0):
        scores = torch.zeros(1, 9)
        scores[0, 0] = torch.tensor(0.1).log().neg()
        scores.requires_grad_()
        loss = flatclr.objectives.debiased(flatclr.stats_from_scores(scores), beta, prior=0.1).sum()
        (gradient,) = torch.autograd.grad(loss, scores)
        assert gradient.isfinite().all()
