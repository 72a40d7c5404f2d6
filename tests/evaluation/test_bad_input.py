"""Bad input is one clear line, before the work."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flatclr
from flatclr.data.sources import Dataset, PairedArrays, ResidentImages
from tests.support.evaluation import CLASSES, pictures, small_data, small_encoder


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[str] = []
    with pytest.raises(ValueError, match=r"out must be a folder that can be made, got .*file/out"):
        flatclr.evaluate(
            small_encoder(), small_data(), out=tmp_path / "file" / "out", progress=lambda what, *_: told.append(what)
        )
    assert told == []


def missing_class() -> Dataset:
    images, labels = pictures(90, seed=0)
    train = ResidentImages(images[labels != 2], labels[labels != 2], CLASSES, name="train")
    return Dataset("holes", train, ResidentImages(images, labels, CLASSES, name="test"))


def unlabelled() -> Dataset:
    images, _ = pictures(90, seed=0)
    return Dataset("bare", ResidentImages(images, name="train"), ResidentImages(images, name="test"))


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "protocol": ({"protocol": "knm"}, ValueError, r"protocol must be one of .* got 'knm'; did you mean 'knn'\?"),
    "no protocol": ({"protocol": []}, ValueError, "protocol must name at least one"),
    "no labels": ({"data": unlabelled()}, ValueError, "knn must have labelled .* got no labels in bare; label them"),
    "missing class": ({"data": missing_class()}, ValueError, "got 'both' in holes's test part only; split"),
    "channels": ({"data": small_data(channels=3)}, ValueError, "train must have 1 channels for this encoder, got 3"),
    "size": ({"data": small_data(size=16)}, ValueError, "must have images of 12 pixels for this encoder, got 16"),
    "pairs": (
        {"data": Dataset("p", PairedArrays(torch.ones(4, 2), torch.ones(4)), None)},
        ValueError,
        "must be images, got paired",
    ),
    "layer": ({"layer": "layr2"}, ValueError, r"layer must be one of .* got 'layr2'; did you mean 'layer2'\?"),
    "layer of training": (
        {"layer": "layer2", "protocol": "finetune"},
        ValueError,
        "finetune must train the whole network",
    ),
    "draws": ({"draws": 0}, ValueError, "draws must be a whole number >= 1, got 0"),
    "device": ({"device": "gpu"}, ValueError, "device must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 'gpu'; pick one"),
    "no such device": (
        {"device": "cuda:99"},
        ValueError,
        "device must be one of the .* CUDA devices here, got 'cuda:99'",
    ),
    "encoder": ({"run_or_encoder": 3}, TypeError, "an encoder must be a path, .* got int; pass one"),
    "path": ({"run_or_encoder": "runs/nowhere"}, FileNotFoundError, "got runs/nowhere, which does not exist; check"),
    "data path": ({"data": "nowhere/at/all"}, FileNotFoundError, "data must be an existing path"),
    "callable": (
        {"run_or_encoder": lambda x: x.flatten(1), "protocol": "finetune"},
        ValueError,
        "must have weights to train",
    ),
    "shape": (
        {"run_or_encoder": nn.Sequential(nn.Flatten(), nn.Linear(100, 2))},
        ValueError,
        r"must take images \[1, 12, 12\] of train",
    ),
    "output": (
        {"run_or_encoder": lambda x: x.sum()},
        ValueError,
        r"'output' must give a tensor \[N, d, ...\], got shape \[\]",
    ),
    "bare weights": (
        {"run_or_encoder": __file__.replace(".py", ".pth")},
        FileNotFoundError,
        "which does not exist; check the path",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case: str, tmp_path: Path) -> None:
    changes, kind, message = BAD[case]
    settings: dict[str, Any] = {"run_or_encoder": small_encoder(), "data": small_data(), "protocol": "knn"} | changes
    with pytest.raises(kind, match=message) as caught:
        flatclr.evaluate(**settings, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("protocol", ["knn", "linear", "retrieval", "geometry", "mi", "finetune"])
def test_an_encoder_that_gives_nan_is_refused_in_one_line(protocol: str) -> None:
    encoder = small_encoder()
    with torch.no_grad():
        next(encoder.parameters()).fill_(math.nan)
    with pytest.raises(
        ValueError, match="features of train at layer 'output' must be finite, got NaN or Inf"
    ) as caught:
        flatclr.evaluate(encoder, small_data(), protocol, random_row=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layer", ["all", "layer2", None])
def test_images_of_the_wrong_size_are_one_line_at_every_layer(layer: str | None) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(100, 2))
    with pytest.raises(ValueError, match=r"must take images \[1, 12, 12\]") as caught:
        flatclr.evaluate(module, small_data(), "knn", layer=layer)
    assert "\n" not in str(caught.value)


def test_too_little_memory_is_not_taken_for_a_wrong_size() -> None:
    def hungry(_: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(ValueError, match="2 images of train must fit into the memory of cpu, got too little"):
        flatclr.evaluate(hungry, small_data(), "knn")
