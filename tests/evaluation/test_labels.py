"""Labels of every kind: several classes, none, by name, unbalanced."""

from __future__ import annotations

import pytest

import flatclr
from flatclr.data.sources import Dataset, ResidentImages
from tests.support.evaluation import CLASSES, pictures, small_encoder, with_test_part


def test_a_class_without_training_images_is_named_before_the_work() -> None:
    images, labels = pictures(90, seed=0)
    classes = (*CLASSES, "none")
    data = Dataset("gap", *(ResidentImages(images, labels, classes, name=name) for name in ("train", "test")))
    found = flatclr.evaluate(small_encoder(), data, ["semi", "knn"], random_row=False)
    assert "got 0 of none" in dict(found.skipped)["semi"]


def test_test_labels_go_by_name() -> None:
    images, labels = pictures(90, seed=1)
    kept = labels != 0
    numbers = labels[kept] - 1  # a folder without the first class counts the others from 0
    found = flatclr.evaluate(
        small_encoder(), with_test_part(images[kept], numbers, CLASSES[1:]), ["linear"], random_row=False
    )
    assert found["linear"].scores["top1"].value > 0.9


def test_a_test_class_that_training_does_not_know_is_one_line() -> None:
    images, labels = pictures(90, seed=1)
    labels[0] = 3
    data = with_test_part(images, labels, (*CLASSES, "new"))
    with pytest.raises(ValueError, match="must be in the training images, got 'new' in pictures's test part only"):
        flatclr.evaluate(small_encoder(), data, "knn")
