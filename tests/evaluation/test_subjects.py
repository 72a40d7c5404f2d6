"""What can be evaluated: runs, encoders, modules, callables, and weights from elsewhere."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import flatclr
from flatclr.data.opening import open_dataset
from flatclr.data.sources import Dataset, PairedArrays, ResidentImages
from flatclr.evaluation import evaluator
from flatclr.evaluation.opening import open_named
from flatclr.evaluation.request import EvaluationRequest
from flatclr.models.encoders import ResNet, build_encoder
from flatclr.models.network import Normalisation
from tests.support.evaluation import flatclr_eval, pictures, small_data, small_encoder
from tests.support.training_worker import config


def test_any_callable_and_any_module_can_be_evaluated() -> None:
    data = small_data()
    pixels = flatclr.evaluate(lambda images: images.flatten(1), data, "linear")
    assert [row.weights for row in pixels.rows] == ["trained"]
    torch.manual_seed(1)  # another seed than that of the random weights
    module = nn.Sequential(nn.Flatten(), nn.Linear(144, 10))
    found = flatclr.evaluate(module, data, "geometry")
    assert [row.weights for row in found.rows] == ["trained", "random"]
    assert found["geometry"].best.value != found.rows[1].best.value


def test_a_module_that_cannot_be_drawn_anew_has_no_random_row() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(144))

        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1) * self.scale

    assert [row.weights for row in flatclr.evaluate(Scaled(), small_data(), "knn").rows] == ["trained"]


def test_a_state_dict_needs_its_architecture_and_reports_its_fit(tmp_path: Path) -> None:
    state = {
        f"module.encoder_q.{name}": value
        for name, value in build_encoder("cnn", channels=1, image_size=12).state_dict().items()
    }
    torch.save({"state_dict": {**state, "module.encoder_k.queue": torch.zeros(2)}}, tmp_path / "weights.pth")
    run = partial(flatclr.evaluate, tmp_path / "weights.pth", small_data(), "knn", random_row=False)
    with pytest.raises(ValueError, match="must come with its architecture, got a bare state dict; pass architecture="):
        run()
    found = run(architecture="cnn", prefix="module.encoder_q.")
    assert "24 of 24 tensors loaded, 1 unexpected (module.encoder_k.queue)" in found.report
    with pytest.raises(ValueError, match="must have keys such as"):
        run(architecture="cnn", prefix="nothing.")


def moco_file(path: Path, name: str, stem: str, drop: str = "") -> Path:
    """A checkpoint as MoCo writes it: the encoder and its head under one prefix, the queue beside them."""
    state = build_encoder(name, channels=3, image_size=32, stem=stem).state_dict() | {"fc.0.weight": torch.ones(8, 512)}
    named = {f"module.encoder_q.{key}": value for key, value in state.items() if key != drop}
    torch.save({"epoch": 200, "state_dict": {**named, "module.queue": torch.ones(8, 16)}}, path)
    return path


@pytest.mark.parametrize(
    ("stored", "architecture", "drop", "message"),
    [
        (
            "resnet18",
            "resnet18",
            "layer2.0.bn1.running_var",
            r"got 1 missing and 0 of another shape, of 120 \(first: layer2\.0\.bn1\.running_var is missing, "
            r"expected \[128\]\); pass the architecture= and prefix= \(--architecture, --prefix\)",
        ),
        (
            "resnet18",
            "resnet50",
            "",
            r"first: layer1\.0\.conv1\.weight has shape \[64, 64, 3, 3\], expected \[64, 64, 1, 1\]",
        ),
        (
            "resnet34",
            "resnet18",
            "",
            r"must hold a resnet18, got \d+ tensors more in its layers \(first: module\.encoder_q\.layer1\.2\.conv1\.weight\)",
        ),
    ],
)
def test_weights_of_part_of_an_encoder_are_refused(
    stored: str,
    architecture: str,
    drop: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = moco_file(tmp_path / "moco.pth", stored, "cifar", drop)
    np.savez(tmp_path / "p.npz", train_images=pictures(30, seed=0, size=32, channels=3)[0].numpy())
    with pytest.raises(SystemExit, match="2"):
        flatclr_eval(
            *(monkeypatch, "eval", weights, "--architecture", architecture, "--prefix", "module.encoder_q."),
            *("--data", tmp_path / "p.npz", "--protocol", "geometry"),
        )
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.count("\n") == 1
    assert not (tmp_path / "evaluation").exists()


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 7), ("cifar", 3)])
@pytest.mark.parametrize("image_size", [12, 80])
def test_the_stem_of_a_resnet_is_that_of_its_file(stem: str, side: int, image_size: int, tmp_path: Path) -> None:
    weights = moco_file(tmp_path / "moco.pth", "resnet18", stem)
    subject = open_named(
        weights, channels=3, image_size=image_size, architecture="resnet18", prefix="module.encoder_q."
    )
    assert isinstance(subject.module, ResNet)
    assert subject.module.conv1.kernel_size == (side, side)
    assert isinstance(subject.module.maxpool, nn.MaxPool2d if stem == "imagenet" else nn.Identity)
    stored = torch.load(weights)["state_dict"]["module.encoder_q.conv1.weight"]
    assert torch.equal(subject.module.conv1.weight, stored)
    fresh = subject.at_random(0)
    assert fresh is not None
    assert isinstance(fresh.module, ResNet)
    assert fresh.module.conv1.kernel_size == (side, side)
    assert subject.report.startswith("120 of 120 tensors loaded, 2 unexpected")


def test_encoders_of_timm_come_with_their_weights_and_normalisation(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def create_model(name: str, **options: Any) -> nn.Module:
        asked.update(options)
        model = nn.Sequential(nn.Flatten(), nn.Linear(144, 6))
        model.pretrained_cfg = {"mean": (0.1,), "std": (0.2,)}  # type: ignore[assignment]
        return model

    fake = ModuleType("timm")
    fake.create_model, fake.list_models = create_model, lambda: ["tiny"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", fake)
    found = flatclr.evaluate("timm:tiny", small_data(), "knn", random_row=False)
    assert asked["pretrained"] is True
    assert found.report == "weights as published"
    subject, _ = evaluator._opened(EvaluationRequest("timm:tiny", small_data()))
    assert subject.normalisation == Normalisation((0.1,), (0.2,))


def test_an_encoder_in_half_precision_is_evaluated() -> None:
    found = flatclr.evaluate(small_encoder().bfloat16(), small_data(), ["knn", "finetune"], random_row=False)
    assert found["knn"].best.value > 0.9


def test_a_run_on_data_of_its_own_is_not_measured_on_others(tmp_path: Path) -> None:
    data = open_dataset()
    assert isinstance(data.train, ResidentImages)
    own = Dataset("mine", data.train.subset(torch.arange(64), "train"), None)
    run = flatclr.train(config(tmp_path / "run", 2), data=own).path
    with pytest.raises(ValueError, match=r"trained on 'mine', got 'fashion.*' by default; pass --data"):
        flatclr.evaluate(run, protocol="knn")
    assert flatclr.evaluate(run, own, "geometry", random_row=False).rows


def test_data_are_looked_for_where_the_run_found_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = flatclr.train(config(tmp_path / "run", 2, data_dir=str(tmp_path))).path
    asked: list[object] = []

    def opened(spec: object, **options: object) -> Dataset:
        asked.append(options["data_dir"])
        return open_dataset()

    monkeypatch.setattr(evaluator, "dataset_from", opened)
    flatclr.evaluate(run, protocol="geometry", random_row=False)
    assert asked == [str(tmp_path)]


def test_weights_from_elsewhere_may_have_any_name_and_normalisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = pictures(150, seed=0)
    np.savez(tmp_path / "p.npz", images=images.numpy(), labels=labels.numpy())
    state = build_encoder("cnn", channels=1, image_size=12).state_dict()
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    arguments = ["--architecture", "cnn", "--mean", "0.25", "--std", "0.5", "--data", tmp_path / "p.npz", "--json"]
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, "eval", tmp_path / "model.safetensors", "--protocol", "geometry", *arguments)
    end = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "tensors loaded" in end["weights"]
    written = json.loads((tmp_path / "evaluation" / "results.json").read_text())
    assert written["normalisation"] == {"mean": [0.25], "std": [0.5]}
    assert written["rows"][0]["seed"] == 0
    with pytest.raises(SystemExit, match="2"):
        flatclr_eval(monkeypatch, "eval", tmp_path / "model.safetensors", "--mean", "a")
    assert "--mean and --std must be numbers" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["closure", "partial", "method", "attribute"])
def test_modules_inside_a_callable_stay_as_they_were(kind: str) -> None:
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(144), nn.Dropout(0.5)).train()

    class Holder:
        def __init__(self) -> None:
            self.module = module

        def __call__(self, x: Tensor) -> Tensor:
            out: Tensor = self.module(x)
            return out

    def through(inner: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = inner(x)
        return out

    before = {name: value.clone() for name, value in module.state_dict().items()}
    callables = {
        "closure": lambda x: module(x),
        "partial": partial(through, module),
        "method": module.forward,
        "attribute": Holder(),
    }
    flatclr.evaluate(callables[kind], small_data(), "knn")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(part.training for part in module.modules())


def test_random_weights_seed_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded, encoder = list[int](), small_encoder()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    flatclr.evaluate(encoder, small_data(), ["knn", "finetune"])
    assert seeded == []


def test_a_run_on_pairs_is_not_for_images(tmp_path: Path) -> None:
    pairs = Dataset("pairs", PairedArrays(torch.randn(32, 5), torch.randn(32, 4)), None)
    settings = config(tmp_path / "run", 2, encoder="auto", encoder_options={})
    run = flatclr.train(settings, data=pairs).path
    with pytest.raises(ValueError, match="the data must be pairs, got images"):
        flatclr.evaluate(run, small_data())
    with pytest.raises(ValueError, match=r"must take images, got .*encoder_x for rows of 5 numbers"):
        flatclr.evaluate(run / "encoder_x", small_data())


def test_a_run_with_a_module_of_ones_own_loads_into_one(tmp_path: Path) -> None:
    def module() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(144, 6))

    run = flatclr.train(config(tmp_path / "run", 2), data=small_data(), encoder=module()).path
    with pytest.raises(ValueError, match=r"or evaluate\(path, into=module\)"):
        flatclr.evaluate(run, small_data())
    assert flatclr.evaluate(run, small_data(), "knn", into=module()).rows
