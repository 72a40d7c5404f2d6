"""Encoders for other programs: ONNX under onnxruntime, and a folder with a model card."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from torch import Tensor, nn

from flatclr.models import export
from flatclr.models.encoders import build_encoder
from flatclr.models.export import export_folder, export_onnx
from flatclr.models.network import Normalisation
from flatclr.models.saving import load_encoder
from tests.support.networks import ABOUT, encoder


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
    with pytest.raises(
        ImportError, match=r'needs onnxruntime, which is not installed; pip install "flatclr\[export\]"'
    ):
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


def test_a_new_repository_with_hidden_files_takes_an_export_and_its_card_says_how_to_use_it(tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    (folder / ".git").mkdir(parents=True)
    (folder / ".gitattributes").touch()
    encoder = build_encoder("cnn", channels=1, image_size=8, width=8)
    assert "features = encoder(images)\n" in (export_folder(encoder, folder) / "README.md").read_text()
    encoder.normalisation = Normalisation((0.5,), (0.5,))
    card = (export_folder(encoder, folder) / "README.md").read_text()
    assert "features = encoder(encoder.normalisation(images))\n" in card
