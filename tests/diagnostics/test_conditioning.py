"""Singular values of Jacobians against finite differences, and what an inverse gives back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flatclr.diagnostics import condition_number, inversion_error, jacobian_singular_values
from flatclr.models import build_encoder


def test_singular_values_are_those_of_finite_differences() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    inputs, step = torch.randn(3, 4, dtype=torch.float64), 1e-6
    found = jacobian_singular_values(module, inputs, chunk=2)
    for sample, values in zip(inputs, found, strict=True):
        moved = [(module(sample + step * e) - module(sample - step * e)) / (2 * step) for e in torch.eye(4).double()]
        torch.testing.assert_close(values, torch.linalg.svdvals(torch.stack(moved)), atol=1e-7, rtol=0)


def test_a_rotation_has_condition_one_and_a_lost_direction_an_infinite_one() -> None:
    turn, lose = nn.Linear(2, 2).double(), nn.Linear(2, 2).double()
    turn.weight.data = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    lose.weight.data = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert condition_number(turn, torch.zeros(2, 2).double()).tolist() == pytest.approx([1, 1])
    assert condition_number(lose, torch.zeros(1, 2).double()).isinf().all()
    lose.weight.data.zero_()
    assert condition_number(lose, torch.zeros(1, 2).double()).isinf().all()


class Counted(nn.Module):
    """How often it is called, and on request what vmap refuses: a branch by a value."""

    def __init__(self, *, branches: bool) -> None:
        super().__init__()
        self.map, self.branches, self.calls = nn.Linear(3, 3).double(), branches, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        shift = 1.0 if self.branches and x.sum() > 1e9 else 0.0
        out: Tensor = torch.tanh(self.map(x)) + shift
        return out


def test_samples_go_together_where_vmap_allows_it_and_give_the_same_numbers_where_not() -> None:
    torch.manual_seed(0)
    together, apart = Counted(branches=False), Counted(branches=True)
    apart.load_state_dict(together.state_dict())
    inputs = torch.randn(7, 3, dtype=torch.float64)
    torch.testing.assert_close(condition_number(together, inputs), condition_number(apart, inputs))
    assert together.calls == 1
    assert apart.calls >= len(inputs)


def test_batch_statistics_neither_count_nor_change() -> None:
    encoder = build_encoder("cnn", channels=1, image_size=8, width=4).train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    images = torch.randn(3, 1, 8, 8)
    together, alone = condition_number(encoder, images), condition_number(encoder, images[:1])
    torch.testing.assert_close(together[:1], alone)
    assert encoder.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"inputs must be floating-point samples \[N, ...\]"):
        condition_number(nn.Linear(2, 2), torch.zeros(2))
    with pytest.raises(TypeError, match="module must return one tensor, got tuple"):
        condition_number(nn.GRU(2, 2), torch.zeros(1, 3, 2))
    with pytest.raises(TypeError, match="module must have a method inverse, got Linear"):
        inversion_error(nn.Linear(2, 2), torch.zeros(1, 2))
