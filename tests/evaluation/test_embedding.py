"""`embed`: features of files, arrays, datasets, with their names, prepared as in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import flatclr
from flatclr.data import Dataset, ResidentImages, SkippedImagesWarning
from flatclr.models import Normalisation, build_encoder
from tests.support.images import color_png, shorten, write_png


class Flat(nn.Module):
    """Features are the pixels it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.normalisation = Normalisation((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("b c/2.png", "b c/1.png", "a.png", "d/e/3.png"):
        color_png(tmp_path / "photos" / name)
    return tmp_path / "photos"


def test_rows_are_files_by_name_normalised_as_the_encoder_says(photos: Path) -> None:
    found = flatclr.embed(Flat(), photos)

    assert found.names == ("a.png", "b c/1.png", "b c/2.png", "d/e/3.png")
    assert found.labels is None
    for name, row in zip(found.names, found.features, strict=True):
        pixels = np.asarray(Image.open(photos / name)).transpose(2, 0, 1) / 255
        np.testing.assert_allclose(row, ((pixels - 0.5) / 0.25).ravel(), atol=1e-5)


def test_files_are_brought_to_the_size_and_channels_of_the_encoder(photos: Path) -> None:
    encoder = build_encoder("mlp", channels=1, image_size=4, width=6)
    assert flatclr.embed(encoder, photos).features.shape == (4, 6)


def test_arrays_of_another_size_are_refused_unless_told() -> None:
    encoder, images = build_encoder("cnn", channels=3, image_size=16, width=4), torch.rand(5, 3, 24, 24)
    with pytest.raises(ValueError, match=r"images of 16 pixels for this encoder, got 24; pass --image-size 16"):
        flatclr.embed(encoder, images)
    assert len(flatclr.embed(encoder, images, image_size=16)) == 5
    assert len(flatclr.embed(encoder, images, image_size=20)) == 5


def test_floats_beyond_0_and_1_are_refused() -> None:
    with pytest.raises(ValueError, match=r"within \[0, 1\] if float, got \[-1, 1\]"):
        flatclr.embed(Flat(), torch.linspace(-1, 1, 2 * 3 * 64).view(2, 3, 8, 8))


def test_arrays_datasets_and_torch_datasets_give_the_same_features() -> None:
    images = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    labels = torch.arange(6) % 2
    dataset = torch.utils.data.TensorDataset(images, labels)
    whole = Dataset("mine", ResidentImages(images, labels), None)
    found = [flatclr.embed(Flat(), data) for data in (images, images.numpy(), (images, labels), dataset, whole)]

    for other in found[1:]:
        np.testing.assert_array_equal(other.features, found[0].features)
    assert found[2].labels == found[4].labels == ("0", "1") * 3
    assert np.asarray(found[0]).shape == (6, 192)


def test_sub_folders_are_labels_and_both_parts_are_taken(tmp_path: Path) -> None:
    for name in ("train/cat/1.png", "train/dog/2.png", "test/cat/3.png"):
        color_png(tmp_path / "pets" / name)
    found = flatclr.embed(Flat(), tmp_path / "pets")

    assert found.names == ("train/cat/1.png", "train/dog/2.png", "test/cat/3.png")
    assert found.labels == ("cat", "dog", "cat")
    assert flatclr.embed(Flat(), tmp_path / "pets", labels="none").labels is None


def test_damaged_images_are_left_out_with_their_names(photos: Path) -> None:
    write_png(photos / "a.png", np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8))
    shorten(photos / "a.png", 60)
    with pytest.warns(SkippedImagesWarning):
        found = flatclr.embed(Flat(), photos)

    assert found.names == ("b c/1.png", "b c/2.png", "d/e/3.png")
    assert len(found.features) == 3
    assert np.asarray(found.picture(0)).tolist() == np.asarray(Image.open(photos / "b c/1.png")).tolist()


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_what_is_saved_is_read_again(suffix: str, tmp_path: Path) -> None:
    for name in ("cat/1.png", "dog/ü 2.png"):
        color_png(tmp_path / "pets" / name)
    found = flatclr.embed(Flat(), tmp_path / "pets")
    path = found.save(tmp_path / "new" / f"emb{suffix}")

    if suffix == ".npz":
        with np.load(path) as read:
            names, labels, features = read["names"], read["labels"], read["features"]
    else:
        frame = pd.read_parquet(path)
        names, labels, features = frame["name"], frame["label"], frame.filter(regex=r"^f\d+$").to_numpy()
    assert list(names) == ["cat/1.png", "dog/ü 2.png"]
    assert list(labels) == ["cat", "dog"]
    np.testing.assert_array_equal(features, found.features)


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"out must end in \.npz or \.parquet, got 'emb\.csv'"):
        flatclr.evaluation.Embeddings(np.zeros((1, 2), np.float32), ("a",), None, "e", "d").save("emb.csv")
    with pytest.raises(ValueError, match="data must be named for an encoder without a run"):
        flatclr.embed(Flat())
    with pytest.raises(ValueError, match="the data must be images, got paired arrays"):
        flatclr.embed(Flat(), (np.zeros((9, 2)), np.zeros((9, 3))))
    with pytest.raises(TypeError, match=r"data must be a path or name, .*, got int"):
        flatclr.embed(Flat(), 3)
