"""Networks of encoder, head and normalisation: built once, loaded from runs, the same for evaluation and training."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import flatclr
from flatclr import evaluation, models
from flatclr.data.views import apply_views, draw_views, no_augmentation
from flatclr.models.heads import head_from_state
from flatclr.training.events import Event, Started
from tests.support.evaluation import small_data
from tests.support.training_worker import config


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("d_hidden", [None, 48])
def test_a_head_is_built_again_from_its_tensors_alone(layers: int, norm: str, d_hidden: int | None) -> None:
    head = models.build_head(32, d_hidden=d_hidden, d_out=5, layers=layers, norm=norm)
    head(torch.randn(64, 32))  # running statistics that are not those of a new head
    before = torch.get_rng_state()
    again = head_from_state(head.state_dict())
    assert torch.equal(torch.get_rng_state(), before)
    assert repr(again) == repr(head)
    assert not again.training
    x = torch.randn(3, 32)
    assert torch.equal(again(x), head.eval()(x))


def test_tensors_of_something_else_are_no_head() -> None:
    with pytest.raises(ValueError, match=r"must have linear layers, got \['bias', 'weight'\]; pass that of build_head"):
        head_from_state(nn.Linear(2, 2).state_dict())


def test_one_mean_and_deviation_serve_all_channels_as_they_do_in_training() -> None:
    how = models.Normalisation((0.5,), (0.25,))
    images = torch.randint(256, (3, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    views = no_augmentation(mean=how.mean, std=how.std)
    drawn = draw_views(views, 3, height=8, width=8, generator=torch.Generator())
    torch.testing.assert_close(how(images), apply_views(images, drawn, views))


def test_a_normalised_encoder_takes_images_as_they_are_stored() -> None:
    encoder = models.build_encoder("cnn", channels=1, image_size=8, width=4).eval()
    images = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    levels = images.float() / 255
    assert torch.equal(models.NormalisedEncoder(encoder)(levels), encoder(levels))
    encoder.normalisation = models.Normalisation((0.4,), (0.2,))
    wanted = encoder((levels - 0.4) / 0.2)
    torch.testing.assert_close(models.NormalisedEncoder(encoder)(images), wanted)


def test_a_run_loads_the_class_that_was_trained(tmp_path: Path) -> None:
    run = flatclr.train(config(tmp_path / "run", 2)).path
    network = flatclr.load_network(run)
    assert type(network) is models.Network
    assert network.normalisation == network.encoder.normalisation is not None
    head = models.load_head(run)
    assert head is not None
    assert all(torch.equal(head.state_dict()[name], tensor) for name, tensor in network.head.state_dict().items())


def test_a_network_around_ones_own_encoder_loads_into_another(tmp_path: Path) -> None:
    def module() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(144, 6))

    heard: list[Event] = []
    run = flatclr.train(config(tmp_path / "run", 2), data=small_data(), encoder=module(), on_event=[heard.append]).path
    (trained,) = [event.network for event in heard if isinstance(event, Started)]
    with pytest.raises(ValueError, match=r"pass load_encoder\(path, into=module\)"):
        flatclr.load_network(run)
    network, images = flatclr.load_network(run, into=module()), torch.rand(4, 1, 12, 12)
    assert torch.equal(network(images)[0], trained.eval()(images)[0])
    found = flatclr.evaluate(run, small_data(), "knn", layer="all", into=module(), random_row=False, device="cpu")
    assert [row.layer for row in found.rows][-1].startswith("head.")


@pytest.mark.parametrize("package", [models, evaluation])
def test_every_exported_name_says_what_it_takes_and_returns_and_shows_it(package: ModuleType) -> None:
    for name in package.__all__:
        exported = getattr(package, name)
        document = exported.__doc__ or ""
        if inspect.isclass(exported):
            assert document, name
            assert not document.startswith(f"{name}("), f"{name} says only what dataclass wrote"
        elif inspect.isfunction(exported):
            missing = [part for part in ("Args:", "Returns:") if part not in document]
            assert not missing, f"{name} lacks {missing}"
            assert ">>>" in document or "Example:" in document, f"{name} has no example"
