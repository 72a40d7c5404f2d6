"""Runs that start from weights, and runs that are made longer."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flatclr
from flatclr.models import Normalisation, build_encoder, load_encoder, save_encoder
from flatclr.runs import RunDirectory
from flatclr.training import TrainConfig, Warned, train
from flatclr.training.build import Parts, build
from flatclr.training.events import Event
from flatclr.training.inputs import ImageViews
from tests.support.training import assert_same, paired_npz

QUICK: dict[str, Any] = {
    **{"steps": 3, "batch_size": 8, "device": "cpu", "eval_start": False, "eval_samples": 20, "learning_rate": 1e-2},
    **{"checkpoint_every": 1},
}


@pytest.fixture
def images(tmp_path: Path) -> str:
    np.save(tmp_path / "images.npy", np.random.default_rng(0).integers(0, 256, (30, 3, 16, 16), dtype=np.uint8))
    return str(tmp_path / "images.npy")


def views_of(parts: Parts) -> Any:
    assert isinstance(parts.train_step.inputs, ImageViews)
    return parts.train_step.inputs.views


def weights(parts: Parts) -> dict[str, Tensor]:
    return parts.train_step.bare_network.encoder.state_dict()  # type: ignore[union-attr, operator]


def test_a_run_starts_from_the_encoder_of_another_with_its_normalisation(images: str, tmp_path: Path) -> None:
    options = {"encoder": "resnet18", "encoder_options": {"width": 4}, "views": {"mean": [0.1] * 3, "std": [0.2] * 3}}
    first = train(TrainConfig(data=images, out=str(tmp_path / "first"), **QUICK, **options))
    parts = build(TrainConfig(data=images, init=str(first.path), **QUICK))

    assert_same(weights(parts), load_encoder(first.path).state_dict())
    assert views_of(parts).mean == (0.1, 0.1, 0.1)
    assert all(parameter.requires_grad for parameter in parts.train_step.network.parameters())


def test_a_run_from_weights_resumes_without_them(images: str, tmp_path: Path) -> None:
    given = build_encoder("resnet18", channels=3, image_size=96, width=4)
    given.normalisation = Normalisation((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    save_encoder(tmp_path / "given", given, description={})
    config = TrainConfig(data=images, init=str(tmp_path / "given"), image_size=16, **QUICK)
    whole = train(config.changed(out=str(tmp_path / "whole")))
    train(config.changed(out=str(tmp_path / "part")))
    for checkpoint in (tmp_path / "part" / "checkpoint").glob("*2.pt"):
        assert checkpoint.exists()
    (tmp_path / "part" / "checkpoint" / "step-000000003.pt").unlink()
    shutil.rmtree(tmp_path / "given")
    again = train(TrainConfig(), resume=tmp_path / "part")

    assert_same(load_encoder(again.path).state_dict(), load_encoder(whole.path).state_dict())
    spec = load_encoder(again.path).spec
    assert spec.image_size == 16  # type: ignore[union-attr]
    assert spec.options["stem"] == "imagenet"  # type: ignore[union-attr, index, call-overload]


def test_a_run_from_weights_that_was_killed_before_its_first_checkpoint_starts_from_them_again(
    images: str, tmp_path: Path
) -> None:
    save_encoder(tmp_path / "given", build_encoder("cnn", channels=3, image_size=16, width=4), description={})
    config = TrainConfig(data=images, init=str(tmp_path / "given"), **QUICK)
    whole = train(config.changed(out=str(tmp_path / "whole")))
    train(config.changed(out=str(tmp_path / "part")))
    shutil.rmtree(tmp_path / "part" / "checkpoint")
    again = train(TrainConfig(), resume=tmp_path / "part")

    assert_same(load_encoder(again.path).state_dict(), load_encoder(whole.path).state_dict())


def test_the_files_of_an_encoder_say_the_size_of_photographs(tmp_path: Path) -> None:
    from tests.support.images import write_png

    for i in range(20):
        write_png(tmp_path / "photos" / f"{i}.png", np.zeros((60, 80, 3), np.uint8))
    save_encoder(tmp_path / "given", build_encoder("cnn", channels=3, image_size=24, width=4), description={})
    parts = build(TrainConfig(data=str(tmp_path / "photos"), init=str(tmp_path / "given"), **QUICK))

    assert parts.data.source.image_size == 24  # type: ignore[union-attr]


def test_a_package_s_model_comes_with_its_weights_and_its_own_mean_and_std(
    images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Foreign(nn.Module):
        pretrained_cfg = SimpleNamespace(get=None)

        def __init__(self, channels: int) -> None:
            super().__init__()
            self.body = nn.Conv2d(channels, 6, 4, 4)
            self.pretrained_cfg = {"mean": (0.3, 0.3, 0.3), "std": (0.7, 0.7, 0.7)}  # type: ignore[assignment]

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).mean((2, 3))

    def create_model(name: str, *, in_chans: int, num_classes: int, pretrained: bool = False) -> nn.Module:
        asked.append(pretrained)
        model = Foreign(in_chans)
        if pretrained:
            nn.init.constant_(model.body.weight, 0.5)
        return model

    timm = ModuleType("timm")
    timm.__dict__.update(create_model=create_model, list_models=lambda: ["foreign"])
    monkeypatch.setitem(sys.modules, "timm", timm)
    config = TrainConfig(data=images, init="timm:foreign", **QUICK)
    parts = build(config)

    assert asked == [True]
    assert (views_of(parts).mean, views_of(parts).std) == ((0.3, 0.3, 0.3), (0.7, 0.7, 0.7))
    assert bool((weights(parts)["model.body.weight"] == 0.5).all())
    done = train(config.changed(out=str(tmp_path / "run")))
    assert load_encoder(done.path).normalisation == Normalisation((0.3,) * 3, (0.7,) * 3)
    assert train(TrainConfig(), resume=done.path).steps == 3
    assert asked[-1] is False  # no weights are fetched to go on


def test_a_state_dict_starts_the_architecture_that_is_named(images: str, tmp_path: Path) -> None:
    given = build_encoder("cnn", channels=3, image_size=16)
    torch.save({f"module.{name}": value for name, value in given.state_dict().items()}, tmp_path / "w.pt")
    told: list[Event] = []
    config = TrainConfig(data=images, init=str(tmp_path / "w.pt"), **QUICK)
    assert_same(weights(build(config.changed(encoder="cnn"))), given.state_dict())
    train(config.changed(encoder="cnn", out=str(tmp_path / "run")), on_event=[told.append])
    assert any("does not say how its images were normalised" in e.message for e in told if isinstance(e, Warned))
    with pytest.raises(ValueError, match=r"encoder must be named for the state dict .*w\.pt', got 'auto'"):
        build(config)


def test_weights_that_do_not_fit_are_refused(images: str, tmp_path: Path) -> None:
    save_encoder(tmp_path / "grey", build_encoder("cnn", channels=1, image_size=16, width=4), description={})
    for settings, message in (
        ({"init": str(tmp_path / "grey"), "data": images}, "an encoder for images of 3 channels, got .* for 1"),
        ({"init": str(tmp_path / "grey"), "encoder": "mlp"}, "encoder must be that of init, 'cnn', got 'mlp'"),
        ({"init": str(tmp_path / "grey"), "encoder_options": {"width": 8}}, "encoder_options must be left to init"),
        ({"init": "gone"}, "which does not exist"),
        ({"init": str(tmp_path / "grey"), "data": str(paired_npz(tmp_path / "p.npz"))}, "None for paired data"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            build(TrainConfig(**(QUICK | settings)))


def test_a_longer_run_goes_on_from_its_end_and_says_its_schedule(images: str, tmp_path: Path) -> None:
    settings = {name: value for name, value in QUICK.items() if name != "steps"}
    config = TrainConfig(data=images, epochs=2, encoder="cnn", encoder_options={"width": 4}, **settings)
    done = train(config.changed(out=str(tmp_path / "run")))
    told: list[Event] = []
    longer = train(TrainConfig(), resume=done.path, extend_epochs=3, on_event=[told.append])

    assert (done.steps, longer.steps) == (6, 15)
    assert RunDirectory.open(done.path).config()["epochs"] == 5
    said = next(event.message for event in told if isinstance(event, Warned))
    assert said.startswith("the run is made longer, from 6 to 15 steps. The learning rate follows half a cosine over")
    assert "at step 6 it goes from 0 to 0.007" in said
    rates = [row["learning_rate"] for row in RunDirectory.open(done.path).metrics() if "learning_rate" in row]
    assert rates[-1] < 0.001
    assert train(TrainConfig(), resume=done.path).steps == 15  # it stays as long
    assert train(TrainConfig(), resume=done.path, extend_epochs=1).steps == 18


def test_a_run_of_so_many_steps_is_made_longer_too(images: str, tmp_path: Path) -> None:
    done = train(TrainConfig(data=images, encoder="cnn", out=str(tmp_path / "run"), **QUICK))

    assert train(TrainConfig(), resume=done.path, extend_epochs=1).steps == 3 + 3
    with pytest.raises(ValueError, match="extend_epochs must go with resume, got 2 without"):
        flatclr.train(TrainConfig(), extend_epochs=2)
    with pytest.raises(ValueError, match="extend_epochs must be a finite number > 0, got -1"):
        flatclr.train(TrainConfig(), resume=done.path, extend_epochs=-1)
