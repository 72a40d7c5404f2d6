"""Datasets of the Hugging Face hub, with a stand-in for its library."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flatclr.data.opening import open_dataset
from tests.support.images import pixels, png
from tests.support.sources import assert_holds

pytestmark = pytest.mark.usefixtures("_nowhere_else")


class HubImage:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class HubClassLabel:
    names = ("zebra", "ant")


class HubTable:
    """What is used of datasets.Dataset."""

    _fingerprint = "abc"

    def __init__(self, images: np.ndarray, labels: list[int], decode: bool = True) -> None:
        self.images, self.labels = images, labels
        self.features = {"id": object(), "img": HubImage(decode), "label": HubClassLabel()}

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self.labels
        assert not self.features["img"].decode  # type: ignore[attr-defined]
        return {"img": {"bytes": png(self.images[key]), "path": None}}

    def cast_column(self, column: str, kind: HubImage) -> "HubTable":
        assert column == "img"
        return HubTable(self.images, self.labels, kind.decode)


def test_a_hub_dataset_round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = HubTable(pixels(3, 8, 8, 3), [0, 1, 0]), HubTable(pixels(2, 8, 8, 3), [1, 1])

    def load_dataset(name: str, split: str | None, **options: Any) -> Any:
        assert name == "owner/pets"
        if split not in (None, "train"):
            raise KeyError(f"no split {split}")
        return train if split else {"train": train, "test": test}

    hub = SimpleNamespace(load_dataset=load_dataset, Image=HubImage, ClassLabel=HubClassLabel)
    monkeypatch.setitem(sys.modules, "datasets", hub)  # type: ignore[arg-type]
    dataset = open_dataset("hf:owner/pets")
    assert_holds(dataset.train, train.images.transpose(0, 3, 1, 2), [0, 1, 0])
    assert_holds(dataset.test, test.images.transpose(0, 3, 1, 2), [1, 1])
    assert dataset.train.classes == ("zebra", "ant")  # type: ignore[union-attr]
    assert_holds(open_dataset("hf:owner/pets:train").train, train.images.transpose(0, 3, 1, 2), [0, 1, 0])
    with pytest.raises(ValueError, match="hf:owner/pets:no must name a dataset of the Hugging Face hub, got 'no split"):
        open_dataset("hf:owner/pets:no")


def test_without_the_hub_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r'hf:x needs datasets, which is not installed; pip install "flatclr\[hub\]"'):
        open_dataset("hf:x")
