"""The reduction of a critic's scores over a pool."""

import math

import pytest
import torch
from torch import Tensor

from flatclr.mi import pool
from flatclr.mi.critics import Critic
from tests.support.critics import NAMES, X, Y, make


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
