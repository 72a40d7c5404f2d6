"""Statistics of batch normalisation that are measured again, against the layers' own in training."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from flatclr.models import build_encoder
from flatclr.models.statistics import frozen_running_statistics, statistics_of


@pytest.fixture
def encoder() -> nn.Module:
    torch.manual_seed(0)
    return build_encoder("cnn", channels=1, image_size=12, width=4)


def test_with_the_statistics_of_a_batch_evaluation_gives_what_training_does(encoder: nn.Module) -> None:
    batch = torch.randn(16, 1, 12, 12)
    want = copy.deepcopy(encoder).train()(batch)
    with statistics_of(encoder, [batch]), torch.no_grad():
        got = encoder.eval()(batch)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_statistics_are_means_over_the_batches(encoder: nn.Module) -> None:
    batches, found = torch.randn(3, 8, 1, 12, 12).mul(2).add(1).unbind(), []
    for given in ([batches[0]], [batches[1]], [batches[2]], batches):
        with statistics_of(encoder, given):
            found.append({n: b.clone() for n, b in encoder.named_buffers() if "running" in n})
    *each, together = found
    for name, value in together.items():
        torch.testing.assert_close(value, torch.stack([one[name] for one in each]).mean(0))
    first = batches[0].double()
    convolved = torch.nn.functional.conv2d(first, encoder.get_submodule("layer1.conv").weight.double(), padding=1)  # type: ignore[union-attr]
    torch.testing.assert_close(
        each[0]["layer1.norm.running_mean"].double(), convolved.mean((0, 2, 3)), rtol=0, atol=1e-6
    )
    variance = ((convolved - convolved.mean((0, 2, 3), keepdim=True)) ** 2).mean((0, 2, 3))
    torch.testing.assert_close(each[0]["layer1.norm.running_var"].double(), variance, rtol=1e-5, atol=1e-6)


def test_nothing_of_it_stays(encoder: nn.Module) -> None:
    encoder.train()
    encoder.get_submodule("layer2").eval()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    modes = [module.training for module in encoder.modules()]

    def broken() -> Iterator[Tensor]:
        yield torch.randn(4, 1, 12, 12)
        raise OSError("the disk is gone.")

    with statistics_of(encoder, [torch.randn(4, 1, 12, 12)]):
        pass
    with pytest.raises(OSError, match="gone"), statistics_of(encoder, broken()):
        pass
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert [module.training for module in encoder.modules()] == modes
    assert not any(module._forward_pre_hooks for module in encoder.modules())


def test_an_encoder_without_batch_normalisation_is_not_even_run() -> None:
    def never() -> Iterator[Tensor]:
        raise AssertionError("asked for images")
        yield

    with statistics_of(nn.Linear(2, 2), never()):
        pass


def test_statistics_that_are_held_are_not_let_go_by_a_holder_inside(encoder: nn.Module) -> None:
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    with frozen_running_statistics(encoder):
        with frozen_running_statistics(encoder):
            pass
        encoder.train()(torch.randn(4, 1, 12, 12))
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
