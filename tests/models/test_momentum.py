"""Momentum copies follow their closed form, without gradients and without waiting."""

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from flatclr.models import MomentumEncoder
from tests.support.networks import parameters, small


def test_momentum_follows_the_closed_form() -> None:
    """With a source that jumps once, copy_k = source + momentum^k (copy_0 - source)."""
    source = small("cnn").double()
    follower = MomentumEncoder(source, momentum=0.9)
    start = [p.clone() for p in follower.parameters()]
    with torch.no_grad():
        for p in source.parameters():
            p.add_(torch.randn_like(p))
    for _ in range(7):
        follower.update()
    for first, goal, now in zip(start, source.parameters(), follower.parameters(), strict=True):
        torch.testing.assert_close(now, goal + 0.9**7 * (first - goal), rtol=1e-6, atol=1e-6)


def test_momentum_copies_buffers_as_they_are() -> None:
    source = small("cnn")
    follower = MomentumEncoder(source)
    source(torch.randn(8, 1, 28, 28) + 3)
    follower.update()
    for mine, its in zip(follower.module.buffers(), source.buffers(), strict=True):
        assert torch.equal(mine, its)
        assert mine is not its


@pytest.mark.parametrize(("momentum", "moved"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)])
def test_momentum_can_be_scheduled(momentum: float, moved: float) -> None:
    source = nn.Linear(3, 2)
    follower = MomentumEncoder(source)
    nn.init.zeros_(follower.module.weight)
    nn.init.ones_(source.weight)
    follower.momentum = momentum
    follower.update()
    torch.testing.assert_close(follower.module.weight, torch.full((2, 3), moved))
    assert follower.momentum == momentum


def test_the_copy_gives_no_gradient_and_is_no_part_of_its_source() -> None:
    source = small("cnn")
    follower = MomentumEncoder(source)
    assert not any(p.requires_grad for p in follower.parameters())
    assert not follower(torch.randn(2, 1, 28, 28, requires_grad=True)).requires_grad
    assert all(p.requires_grad for p in source.parameters())
    assert parameters(follower) == parameters(source)
    assert {id(p) for p in follower.parameters()}.isdisjoint(id(p) for p in source.parameters())


def test_the_copy_and_its_momentum_are_in_the_state_dict() -> None:
    source = small("cnn")
    follower = MomentumEncoder(source, momentum=0.8)
    nn.init.zeros_(source.layer1.conv.weight)
    follower.update()
    fresh = MomentumEncoder(small("cnn"))
    fresh.load_state_dict(copy.deepcopy(follower.state_dict()))
    assert fresh.momentum == pytest.approx(0.8)
    for mine, its in zip(fresh.module.parameters(), follower.module.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_a_momentum_update_never_waits_for_the_device() -> None:
    follower = MomentumEncoder(small("cnn"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        follower.momentum = 0.5
        follower.update()
        with pytest.raises(Exception, match=r"data-dependent|data dependent|_local_scalar_dense"):
            _ = follower.momentum


@pytest.mark.parametrize("momentum", [-0.1, 1.1])
def test_a_momentum_outside_the_unit_interval_is_refused(momentum: float) -> None:
    with pytest.raises(ValueError, match=rf"momentum must be within \[0, 1\], got {momentum}; 0.99"):
        MomentumEncoder(nn.Linear(2, 2), momentum)
