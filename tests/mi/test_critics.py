"""Critics and the reduction of their scores over a pool."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from flatclr.mi import critics, pool, tasks
from flatclr.mi.copula import fit_gaussian, fit_student
from flatclr.mi.critics import Critic, make_critic

GAUSSIAN = fit_gaussian(*tasks.gaussian_dense(3, 3).sample(400, seed=0))
STUDENT = fit_student(*tasks.student(3, 3, 2).sample(400, seed=0))


def make(name: str) -> Critic:
    torch.manual_seed(0)
    if name == "anchored_on_student":
        critic = critics.anchored(STUDENT, 3, 3, hidden=8)
    elif name == "anchored_joint":
        critic = critics.anchored(GAUSSIAN, 3, 3, hidden=8, joint=True)
    else:
        critic = make_critic(name, 3, 3, hidden=8, copula=GAUSSIAN)
    with torch.no_grad():  # so that nothing is zero by its start
        for parameter in critic.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return critic


NAMES = [*critics.CRITICS, "anchored_on_student", "anchored_joint"]
X, Y = torch.randn(40, 3, generator=torch.Generator().manual_seed(1)), torch.randn(40, 3)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_scores_of_pairs_are_the_diagonal_of_scores_of_all(name: str):
    critic = make(name)

    torch.testing.assert_close(critic.paired(X, Y), critic(X, Y).diagonal(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(critic(X[:3], Y[5:12]), critic(X, Y)[:3, 5:12], atol=1e-4, rtol=1e-4)


def test_the_gaussian_anchor_is_the_log_ratio_of_scipys_densities():
    R = GAUSSIAN.correlation
    joint = np.hstack([X.numpy(), Y.numpy()])
    expected = (
        stats.multivariate_normal(cov=R).logpdf(joint)
        - stats.multivariate_normal(cov=R[:3, :3]).logpdf(X)
        - stats.multivariate_normal(cov=R[3:, 3:]).logpdf(Y)
    )

    np.testing.assert_allclose(critics.anchor_of(GAUSSIAN).paired(X, Y), expected, atol=1e-4)


def test_the_student_anchor_is_the_copulas_log_ratio():
    expected = STUDENT.log_ratio(X.double().numpy(), Y.double().numpy())

    np.testing.assert_allclose(critics.anchor_of(STUDENT).paired(X, Y), expected, atol=1e-4)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("copula", [GAUSSIAN, STUDENT], ids=["gaussian", "student"])
def test_an_anchored_critic_starts_at_its_anchor_and_can_leave_it(copula: object, joint: bool):
    critic = critics.anchored(copula, 3, 3, hidden=8, joint=joint)
    torch.testing.assert_close(critic(X, Y), critics.anchor_of(copula)(X, Y))

    critic(X, Y).square().sum().backward()

    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in critic.parameters())


def test_a_cosine_critic_is_bounded_by_its_scale():
    critic = make("cosine")

    assert critic(100 * X, 100 * Y).abs().max() <= critic.scale + 1e-4


def test_a_bilinear_critic_cannot_follow_even_a_gaussians_ratio_where_a_separable_one_can():
    x, y = (torch.from_numpy(v).float() for v in tasks.gaussian_pairs(1, pairs=1, correlation=0.9).sample(120, seed=0))
    target = critics.anchor_of(fit_gaussian(x.double().numpy(), y.double().numpy()))(x, y)

    def least_error(critic: Critic) -> float:
        optimizer = torch.optim.Adam(critic.parameters(), 1e-2)
        for _ in range(150):
            error = (critic(x, y) - target).square().mean()
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
        return error.item() / target.var().item()

    assert least_error(make_critic("bilinear", 1, 1, hidden=0)) > 0.3
    assert least_error(make_critic("separable", 1, 1, hidden=32)) < 0.1


def dense_oracle(critic: Critic) -> tuple[Tensor, Tensor, Tensor]:
    """Positive, log-sum-exp of each row's and of each column's negatives, from the whole matrix."""
    scores = critic(X, Y).double()
    off = scores.masked_fill(torch.eye(len(X), dtype=torch.bool), -math.inf)
    return scores.diagonal(), off.logsumexp(1), off.logsumexp(0)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_pool_holds_what_the_whole_matrix_says(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "_ROWS_AT_ONCE", 7)
    critic = make(name)
    positive, rows, columns = dense_oracle(critic)

    found = pool.score_pool(critic, X, Y)

    assert found.stats.negatives == 39
    torch.testing.assert_close(found.stats.positive, positive, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.stats.negative_logsumexp, rows, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.column_logsumexp, columns, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_shifting_rows_shifts_rows(name: str):
    critic, shift = make(name), torch.linspace(-1, 1, 40, dtype=torch.float64)
    plain, shifted = pool.score_pool(critic, X, Y), pool.score_pool(critic, X, Y, row_shift=shift)

    torch.testing.assert_close(shifted.stats.positive, plain.stats.positive + shift, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        shifted.stats.negative_logsumexp, plain.stats.negative_logsumexp + shift, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_clipped_partition_is_that_of_the_whole_matrix(name: str):
    critic = make(name)
    off = critic(X, Y).double()[~torch.eye(40, dtype=torch.bool)]

    clipped = pool.clipped_means(critic, X, Y, 0.5)[0].mean().log()

    torch.testing.assert_close(clipped, off.clamp(-0.5, 0.5).exp().mean().log(), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_critic_that_pays_for_pairs_sees_as_many_negatives_as_allowed_and_no_positive():
    critic = make("joint")
    scores = critic(X, Y).double()

    found = pool.score_pool(critic, X, Y, cap=5)

    assert found.stats.negatives == 5
    assert (found.stats.negative_logsumexp <= dense_oracle(critic)[1] + 1e-6).all()
    shifts = pool._shifts(40, 5)
    assert 0 not in {s % 40 for s in shifts}
    rows = torch.stack([scores[torch.arange(40), (torch.arange(40) + s) % 40] for s in shifts], 1)
    torch.testing.assert_close(found.stats.negative_logsumexp, rows.logsumexp(1), atol=1e-4, rtol=1e-4)


def test_an_inner_critic_of_unequal_widths_is_refused():
    with pytest.raises(ValueError, match="inner critic must have x and y of one width, got 3 and 2; use 'bilinear'"):
        make_critic("inner", 3, 2, hidden=8)(X, Y[:, :2])


def test_an_unknown_critic_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"critic must be one of .* got 'seperable'; did you mean 'separable'"):
        make_critic("seperable", 3, 3, hidden=8)


def test_an_anchored_critic_without_a_copula_is_refused():
    with pytest.raises(ValueError, match="anchored critic must have a fitted copula, got None; fit one"):
        make_critic("anchored", 3, 3, hidden=8)
