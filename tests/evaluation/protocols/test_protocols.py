"""Which protocols a dataset is fit for, and how they score it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import flatclr
from flatclr.data.sources import Dataset, ResidentImages
from tests.support.evaluation import CLASSES, pictures, small_data, small_encoder


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


def unbalanced_training() -> Dataset:
    images, labels = pictures(240, seed=0)
    kept = torch.cat([(labels == number).nonzero()[:count, 0] for number, count in enumerate((80, 40, 40))])
    train = ResidentImages(images[kept], labels[kept], CLASSES, name="train")
    return Dataset("leaning", train, small_data().test)


def test_training_counts_decide_the_headline() -> None:
    found = flatclr.evaluate(small_encoder(), unbalanced_training(), ["knn", "semi"], draws=1, random_row=False)
    assert found["knn"].headline == found["semi"].headline == "mean_per_class"


def test_a_protocol_that_lacks_images_leaves_the_others_alone() -> None:
    images, labels = pictures(180, seed=0)
    kept = torch.cat([(labels == 0).nonzero()[:, 0], (labels == 1).nonzero()[:1, 0]])
    rare = Dataset("rare", ResidentImages(images[kept], labels[kept], CLASSES[:2], name="train"), None)
    few = ResidentImages(images[kept][-2:], labels[kept][-2:], CLASSES[:2], name="test")
    found = flatclr.evaluate(
        small_encoder(), Dataset("rare", rare.train, few), "all", transfer_data=rare, draws=1, random_row=False
    )
    skipped = dict(found.skipped)
    assert skipped.keys() == {"semi", "transfer", "retrieval", "geometry", "mi"}
    assert "3 training images of every class for 10% of the labels, got 1 of level" in skipped["semi"]
    assert "no test images in rare" in skipped["transfer"]
    assert "at least 8 images, got 2" in skipped["mi"]
    assert {row.protocol for row in found.rows} == {"knn", "linear", "finetune"}
