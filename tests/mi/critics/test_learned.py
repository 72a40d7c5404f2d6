"""Critics that are learned from nothing, and what all of them have in common."""

import pytest
import torch

from flatclr.mi import critics, tasks
from flatclr.mi.copula import fit_gaussian
from flatclr.mi.critics import Critic, make_critic
from tests.support.critics import NAMES, X, Y, make


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_scores_of_pairs_are_the_diagonal_of_scores_of_all(name: str):
    critic = make(name)

    torch.testing.assert_close(critic.paired(X, Y), critic(X, Y).diagonal(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(critic(X[:3], Y[5:12]), critic(X, Y)[:3, 5:12], atol=1e-4, rtol=1e-4)


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


def test_an_inner_critic_of_unequal_widths_is_refused():
    with pytest.raises(ValueError, match="inner critic must have x and y of one width, got 3 and 2; use 'bilinear'"):
        make_critic("inner", 3, 2, hidden=8)(X, Y[:, :2])


def test_an_unknown_critic_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"critic must be one of .* got 'seperable'; did you mean 'separable'"):
        make_critic("seperable", 3, 3, hidden=8)
