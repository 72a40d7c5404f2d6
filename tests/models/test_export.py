"""Encoders for other programs: ONNX under onnxruntime, and a folder with a model card."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from torch import Tensor, nn

import flatclr
from flatclr.cli.main import main
from flatclr.data.sources import Dataset, ResidentImages
from flatclr.models import export
from flatclr.models.encoders import Encoder, build_encoder
from flatclr.models.export import export_folder, export_onnx
from flatclr.models.network import Normalisation
from flatclr.models.saving import load_encoder, save_encoder

ABOUT = {"data": "some images", "objective": "flatnce", "ess_target": 0.25, "measured": {"knn": 0.8123}}


def encoder(name: str = "cnn", **options: Any) -> Encoder:
    built = build_encoder(name, channels=3, image_size=16, **options)
    built.normalisation = Normalisation((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    for part in built.modules():  # statistics that matter
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean = torch.rand(part.num_features)
            part.running_var = 0.5 + torch.rand(part.num_features)
    return built


@pytest.mark.parametrize(
    ("name", "options"), [("cnn", {"width": 4}), ("mlp", {"width": 8}), ("resnet18", {"width": 4})]
)
def test_the_onnx_file_gives_the_features_of_images_in_the_unit_range(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    made = encoder(name, **options).train()
    before = {key: value.clone() for key, value in made.state_dict().items()}
    difference = export_onnx(made, tmp_path / "models" / "encoder.onnx")
    assert difference <= 1e-4
    assert made.training
    assert all(torch.equal(before[key], value) for key, value in made.state_dict().items())
    session = onnxruntime.InferenceSession(tmp_path / "models" / "encoder.onnx")
    assert made.normalisation is not None
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (made.normalisation.mean, made.normalisation.std))
    for samples in (1, 4, 9):
        images = torch.rand(samples, 3, 16, 16)
        with torch.no_grad():
            wanted = made.eval()((images - mean) / std)
        (got,) = session.run(["features"], {"images": images.numpy()})
        np.testing.assert_allclose(got, wanted.numpy(), atol=1e-4)


def test_a_file_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = export._traced

    def broken(module: nn.Module, images: Tensor) -> bytes:
        content = traced(module, images)
        next(module.parameters()).data += 1  # what PyTorch computes afterwards
        return content

    monkeypatch.setattr(export, "_traced", broken)
    with pytest.raises(ValueError, match=r"must give the encoder's features within 0\.0001, got a difference of"):
        export_onnx(encoder(width=4), tmp_path / "encoder.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_module_of_unknown_make_must_say_its_shape(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    with pytest.raises(ValueError, match="channels and image_size must be given for Sequential, got None and None"):
        export_onnx(module, tmp_path / "m.onnx")
    assert export_onnx(module, tmp_path / "m.onnx", channels=3, image_size=4) <= 1e-4


def test_without_the_packages_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r'needs onnxruntime, got no such package; pip install "flatclr\[export\]"'):
        export_onnx(encoder(width=4), tmp_path / "e.onnx")


def test_the_folder_loads_as_the_same_encoder(tmp_path: Path) -> None:
    made = encoder(width=4)
    folder = export_folder(made, tmp_path / "hub", description=ABOUT)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    for path in (folder, folder / "model.safetensors", folder / "config.json"):
        loaded = load_encoder(path)
        assert loaded.normalisation == made.normalisation
        assert loaded.description == ABOUT
        assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in made.state_dict().items())


def test_the_card_says_what_the_encoder_is_and_achieves(tmp_path: Path) -> None:
    text = (export_folder(encoder(width=4), tmp_path, description=ABOUT) / "README.md").read_text()
    _, header, body = text.split("---\n", 2)
    assert yaml.safe_load(header) == {
        "library_name": "flatclr",
        "tags": ["contrastive-learning", "self-supervised-learning", "image-feature-extraction"],
        "datasets": ["some images"],
    }
    for line in ("| objective | flatnce |", "| ess target | 0.25 |", "| data | some images |", "| knn | 0.8123 |"):
        assert line in body
    assert (
        "Nothing was measured" in (export_folder(encoder(width=4), tmp_path, description={}) / "README.md").read_text()
    )


def test_damaged_folder_weights_are_refused(tmp_path: Path) -> None:
    export_folder(encoder(width=4), tmp_path, description={})
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3])
    with pytest.raises(ValueError, match="it is damaged or belongs to another"):
        load_encoder(tmp_path)


def command(monkeypatch: pytest.MonkeyPatch, code: int, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["flatclr", "export", *map(str, arguments)])
    with pytest.raises(SystemExit, match=str(code)):
        main()


def noisy_images(samples: int, name: str) -> ResidentImages:
    images = torch.randint(0, 256, (samples, 3, 16, 16), dtype=torch.uint8)
    return ResidentImages(images, torch.arange(samples) % 2, name=name)


def test_the_command_writes_both_with_the_measured_accuracies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = encoder(width=4)
    save_encoder(tmp_path, made, description=ABOUT)
    noise = Dataset("noise", *(noisy_images(samples, name) for samples, name in ((40, "train"), (20, "test"))))
    flatclr.evaluate(tmp_path, noise, "knn", out=tmp_path / "evaluation")
    flatclr.evaluate(tmp_path, noise, "retrieval", out=tmp_path)
    command(monkeypatch, 0, tmp_path, "--onnx", tmp_path / "e.onnx", "--folder", tmp_path / "hub", "--json")
    written = json.loads(capsys.readouterr().out)
    assert written["largest_difference"] <= 1e-4
    card = (tmp_path / "hub" / "README.md").read_text()
    assert "| knn v2 | noise | output | top1 | " in card
    assert "| retrieval v2 | noise | output | recall_at_1 | " in card
    with torch.no_grad():
        next(made.parameters()).add_(1)
    save_encoder(tmp_path, made, description=ABOUT)  # other weights: the results are not theirs
    command(monkeypatch, 0, tmp_path, "--folder", tmp_path / "hub")
    assert "| knn v2 |" not in (tmp_path / "hub" / "README.md").read_text()


@pytest.mark.parametrize("name", ["README.md", "config.json", "notes.txt"])
def test_a_folder_of_others_is_not_exported_into(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_encoder(tmp_path / "encoder", encoder(width=4), description=ABOUT)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text('{"model_type": "bert"}')
    command(monkeypatch, 2, tmp_path / "encoder", "--onnx", tmp_path / "e.onnx", "--folder", tmp_path / "mine")
    error = capsys.readouterr().err
    assert "must go to a new or empty folder or replace a former export, got" in error
    assert error.count("\n") == 1
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [name]
    assert (tmp_path / "mine" / name).read_text() == '{"model_type": "bert"}'
    assert not (tmp_path / "e.onnx").exists()
    with pytest.raises(FileExistsError, match="a folder with other files; pass another folder"):
        export_folder(encoder(width=4), tmp_path / "mine")
    with pytest.raises(FileExistsError, match=r"a file; pass another folder"):
        export_folder(encoder(width=4), tmp_path / "mine" / name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--onnx", "e.onnx"], "encoder must be"),
        (["."], "got neither --onnx nor --folder; pass one or both"),
        (["nowhere", "--onnx", "."], "must have a name of its own, got the folder .; pass encoder.onnx."),
        (["UNFINISHED", "--onnx", "e.onnx"], "got no encoder.json; finish it with flatclr train --resume UNFINISHED."),
        (["PAIRED", "--folder", "hub"], "one for each side; pass PAIRED/encoder_x or encoder_y."),
    ],
)
def test_the_command_answers_bad_input_in_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for run, part in (("UNFINISHED", "checkpoint"), ("PAIRED", "encoder_x")):
        (tmp_path / run / part).mkdir(parents=True)
        (tmp_path / run / "config.yaml").write_text("seed: 0\n")
    command(monkeypatch, 2, *arguments)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_new_repository_with_hidden_files_takes_an_export_and_its_card_says_how_to_use_it(tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    (folder / ".git").mkdir(parents=True)
    (folder / ".gitattributes").touch()
    encoder = build_encoder("cnn", channels=1, image_size=8, width=8)
    assert "features = encoder(images)\n" in (export_folder(encoder, folder) / "README.md").read_text()
    encoder.normalisation = Normalisation((0.5,), (0.5,))
    card = (export_folder(encoder, folder) / "README.md").read_text()
    assert "features = encoder(encoder.normalisation(images))\n" in card
