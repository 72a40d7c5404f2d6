"""Critics that start from a copula."""

import numpy as np
import pytest
import torch
from scipy import stats

from flatclr.mi import critics
from flatclr.mi.critics import make_critic
from tests.support.critics import GAUSSIAN, STUDENT, X, Y


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


def test_an_anchored_critic_without_a_copula_is_refused():
    with pytest.raises(ValueError, match="anchored critic must have a fitted copula, got None; fit one"):
        make_critic("anchored", 3, 3, hidden=8)
