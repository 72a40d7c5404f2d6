"""Data that comes from Python: arrays, torch Datasets, tables of the hub, sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from flatclr.data import Dataset, FileImages, ItemImages, PairedArrays, ResidentImages
from flatclr.data.opening import dataset_from
from tests.support.images import color_png

IMAGES = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Photos(torch.utils.data.Dataset[Any]):
    """As torchvision's datasets: items (PIL image, class), with targets and classes."""

    targets = tuple(i % 2 for i in range(20))
    classes = ("cat", "dog")

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        return Image.fromarray(IMAGES[i].permute(1, 2, 0).numpy()), i % 2


class Table:
    """As a dataset of the hub."""

    class ClassLabel:
        names = ("cat", "dog")

    features = {"image": object(), "label": ClassLabel()}  # noqa: RUF012

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int | str) -> Any:
        if i == "label":
            return [j % 2 for j in range(20)]
        assert isinstance(i, int)
        return {"image": Photos()[i][0], "label": i % 2}


class Unnamed(Photos):
    targets = None  # type: ignore[assignment]


GIVEN: dict[str, Any] = {
    "array": IMAGES.numpy(),
    "channels last": IMAGES.permute(0, 2, 3, 1).numpy(),
    "floats": IMAGES / 255,
    "list of tensors": list(IMAGES),
    "list of PIL images": [Photos()[i][0] for i in range(20)],
    "images and labels": (IMAGES, [i % 2 for i in range(20)]),
    "torch Dataset": Photos(),
    "table of the hub": Table(),
    "TensorDataset": torch.utils.data.TensorDataset(IMAGES, torch.arange(20) % 2),
    "labels in items alone": Unnamed(),
    "source": ResidentImages(IMAGES),
    "dataset": Dataset("mine", ResidentImages(IMAGES), None),
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_every_form_holds_the_same_images(given: Any) -> None:
    data = dataset_from(given, test_fraction=0)
    source = data.train
    assert not isinstance(source, PairedArrays)

    assert torch.equal(source.batch(torch.arange(20)), IMAGES)
    if isinstance(source, ItemImages):
        resident = source.resident(10**9)
        assert resident is not None
        assert torch.equal(resident.images, IMAGES)


@pytest.mark.parametrize("form", ["images and labels", "torch Dataset", "table of the hub", "labels in items alone"])
def test_labels_are_found_where_the_form_has_them(form: str) -> None:
    source = dataset_from(GIVEN[form], test_fraction=0).train
    labelled = source.resident(10**9) if isinstance(source, ItemImages) else source
    assert isinstance(labelled, ResidentImages)
    assert isinstance(labelled.labels, Tensor)
    assert labelled.labels.tolist() == [i % 2 for i in range(20)]


def test_a_share_is_held_out_with_its_labels() -> None:
    data = dataset_from(Photos(), test_fraction=0.2)
    assert isinstance(data.test, ItemImages)
    assert (len(data.train), len(data.test)) == (16, 4)
    assert isinstance(data.test.labels, Tensor)
    order = [int((image == IMAGES).flatten(1).all(1).nonzero()) for image in data.test.batch(torch.arange(4))]
    assert data.test.labels.tolist() == [i % 2 for i in order]


def test_splits_of_the_hub_and_paths_and_pairs_are_taken(tmp_path: Path) -> None:
    data = dataset_from({"train": Table(), "test": Table()})
    assert (len(data.train), len(data.test or ())) == (20, 20)
    for i in range(3):
        color_png(tmp_path / f"{i}.png")
    assert len(dataset_from(tmp_path, test_fraction=0).train) == 3
    listed = dataset_from([tmp_path / "0.png", str(tmp_path / "2.png")], test_fraction=0).train
    assert isinstance(listed, FileImages)
    assert [file.name for file in listed.files] == [str(tmp_path / f"{i}.png") for i in (0, 2)]
    assert isinstance(dataset_from((np.zeros((9, 2)), np.zeros((9, 3)))).train, PairedArrays)


class Texts(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> tuple[str, int]:
        return "text", i


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([1, 2])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Texts(), r"a torch Dataset whose items are \(str, int\) cannot be taken for images: .* got str at 0; return"),
        ([{"text": "a"}], r"whose items are a mapping with 'text' cannot be .*; call the image 'image'"),
        (Stream(), "data must have a length and items by number, got Stream, which can only be read in order"),
        (3.5, "data must be a path or name, .* or a sequence of images or of their files, got float"),
        ([], "data must hold images, got none"),
        ([torch.zeros(3, 8, 8) - 1] * 2, r"within \[0, 1\] if float, got \[-1, -1\]"),
    ],
)
def test_what_arrived_is_named_in_the_message(given: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        dataset_from(given, test_fraction=0).train.batch(torch.tensor([0]))
