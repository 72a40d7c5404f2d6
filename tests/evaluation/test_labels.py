"""Labels of every kind: several classes, none, by name, unbalanced."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import flatclr
from flatclr.data.sources import Dataset, ResidentImages
from tests.support.evaluation import CLASSES, pictures, small_data, small_encoder, with_test_part


def several_classes() -> Dataset:
    def part(samples: int, seed: int) -> ResidentImages:
        images, labels = pictures(samples, seed=seed)
        table = np.stack([labels != 1, labels != 0], 1).astype(int)
        return ResidentImages.of(images, table, ("upright", "level"), name=f"part{seed}")

    return Dataset("several", part(240, 0), part(90, 1))


def test_images_of_several_classes_are_scored_by_mean_average_precision() -> None:
    found = flatclr.evaluate(
        small_encoder(), several_classes(), "all", transfer_data=several_classes(), random_row=False
    )
    assert [name for name, _ in found.skipped] == ["knn", "semi", "retrieval"]
    assert found["linear"].headline == "mean_average_precision"
    assert found["linear"].best.value > 0.95
    assert found["finetune"].headline == "mean_average_precision"
    assert found["transfer"].headline == "mean_average_precision"
    with pytest.raises(ValueError, match="knn must have one class per image, got several in several; use linear"):
        flatclr.evaluate(small_encoder(), several_classes(), "knn")


def test_data_without_labels_is_measured_without_them() -> None:
    images, _ = pictures(120, seed=0)
    bare = Dataset("bare", ResidentImages(images, name="train"), None)
    found = flatclr.evaluate(small_encoder(), bare, "all", random_row=False)
    assert {row.protocol for row in found.rows} == {"transfer", "geometry", "mi"}
    assert "simplex_etf_distance" not in found["geometry"].scores
    assert dict(found.skipped)["knn"].startswith(
        "protocol knn must have labelled training and test images, got no test"
    )


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


def unbalanced_training() -> Dataset:
    images, labels = pictures(240, seed=0)
    kept = torch.cat([(labels == number).nonzero()[:count, 0] for number, count in enumerate((80, 40, 40))])
    train = ResidentImages(images[kept], labels[kept], CLASSES, name="train")
    return Dataset("leaning", train, small_data().test)


def test_training_counts_decide_the_headline() -> None:
    found = flatclr.evaluate(small_encoder(), unbalanced_training(), ["knn", "semi"], draws=1, random_row=False)
    assert found["knn"].headline == found["semi"].headline == "mean_per_class"
