"""Networks with fewer launches, compiled, or with views of another size give the same numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import flatclr
from flatclr.checkpoint import load_checkpoint
from flatclr.data.sources import Dataset, ResidentImages
from flatclr.models.network import Network
from flatclr.training import stepping
from flatclr.training.build import build
from flatclr.training.events import Event, Started
from flatclr.training.networks import FewerLaunches
from flatclr.training.trainer import train
from tests.support.training_worker import config


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_fewer_launches_give_the_same_numbers(dtype: torch.dtype | None) -> None:
    def build() -> Network:
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 6)
        return Network(nn.Sequential(*layers), nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4)))

    views, found = torch.randn(2, 5, 3, 8, 8).unbind(), []
    for network in (build(), build()):
        call = FewerLaunches(network, dtype) if found else network
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            z_a, z_b = call(*views)
        (z_a * z_b).sum().backward()
        gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
        assert all(g is not None and g.dtype == torch.float32 for g in gradients.values())
        found.append({"z_a": z_a, "z_b": z_b, **gradients, **network.state_dict()})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert found[1]["encoder.1.num_batches_tracked"] == 1


class Unusual(nn.Module):
    """Shared weights, a layer with a forward of its own, one that nothing reaches, and a frozen normalisation."""

    class Centred(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight - self.weight.mean(1, keepdim=True), self.bias)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.centred, self.norm = self.Centred(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.norm(self.centred(self.second(self.first(x).relu()))),)


def test_fewer_launches_leave_unusual_layers_as_they_are() -> None:
    x, found = torch.randn(7, 6), []
    for fewer in (False, True):
        torch.manual_seed(0)
        network = Unusual()
        network.norm.eval()
        call = FewerLaunches(network, torch.bfloat16) if fewer else network
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (z,) = call(x)
        z.square().sum().backward()
        found.append((z, {n: p.grad for n, p in network.named_parameters()}, network.norm.num_batches_tracked))
    (z, gradients, count), (again, same, count_again) = found
    assert torch.equal(again, z)
    assert count == count_again == 0
    assert same["unused.weight"] is None
    for name, gradient in gradients.items():
        torch.testing.assert_close(same[name], gradient, rtol=2e-2, atol=2e-2)  # sums in bfloat16 of shared weights


def test_a_compiled_network_trains_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    plain, compiled = (train(config(tmp_path / str(c), 3, compile=c, eval_start=False)).path for c in (False, True))
    want, got = (load_checkpoint(run / "checkpoint").state["train_step"]["network"] for run in (plain, compiled))
    assert got.keys() == want.keys()
    torch.testing.assert_close(got, want)


def test_views_of_another_size_train_an_encoder_of_the_images(tmp_path: Path) -> None:
    seen: list[tuple[bool, int]] = []

    class Watched(nn.Sequential):
        def forward(self, images: Tensor) -> Tensor:
            seen.append((self.training, images.shape[-1]))
            return super().forward(images)

    encoder = Watched(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    data = Dataset("random", ResidentImages(torch.randint(256, (40, 1, 28, 28), dtype=torch.uint8)), None)
    train(config(tmp_path / "run", 3, view_size=20, eval_every=3, micro_batch=None), data=data, encoder=encoder)
    assert {size for training, size in seen if training} == {20}
    assert {size for training, size in seen if not training} == {20, 28}  # the pool of views, and features of images


def test_an_encoder_bound_to_its_size_refuses_views_of_another(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"view_size must be one that the encoder takes .* got 20 .*leave it out"):
        train(config(tmp_path / "run", 3, view_size=20, encoder="mlp", encoder_options={"width": 8}))
    assert not (tmp_path / "run").exists()


def test_the_network_of_a_run_is_the_one_that_was_trained(tmp_path: Path) -> None:
    heard: list[Event] = []
    run = train(config(tmp_path / "run", 3), on_event=[heard.append])
    (trained,) = [event.network for event in heard if isinstance(event, Started)]
    network, images = flatclr.load_network(run.path), torch.rand(4, 1, 28, 28)
    assert not network.training
    assert torch.equal(network(images)[0], trained.eval()(images)[0])
    assert network.encoder.normalisation is not None  # type: ignore[union-attr]


@pytest.mark.parametrize("own", [True, False])
def test_only_networks_of_this_package_are_given_weights_rounded_before_they_are_called(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(stepping, "GraphedSteps", lambda *_, sizes, fewer_launches: asked.append(fewer_launches))
    encoder = None if own else nn.Sequential(nn.Flatten(), nn.Linear(784, 8))
    stepping.captured(build(config(tmp_path, 2), encoder=encoder), iter(()), 0)
    assert asked == [own]
