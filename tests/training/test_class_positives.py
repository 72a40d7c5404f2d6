"""`positives="class"`: what is compared and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flatclr.data import Dataset, PairedArrays, ResidentImages
from flatclr.data.views import no_augmentation
from flatclr.distributed import Ranks
from flatclr.training.build import build
from flatclr.training.inputs import ClassPairViews
from flatclr.training.trainer import train
from flatclr.training.view_groups import ViewGroup
from tests.support.training_worker import config


def toys(samples: int = 64, classes: int = 4) -> Dataset:
    """Noise with a mark of the class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(samples) % classes
    images = torch.randint(0, 200, (samples, 1, 8, 8), generator=generator, dtype=torch.uint8)
    for sample, label in enumerate(labels.tolist()):
        images[sample, 0, 2 * label] = 255
    source = ResidentImages(images, labels)
    return Dataset(name="toys", train=source, test=source)


def test_views_are_of_the_image_and_of_its_positive_in_turns() -> None:
    plain = no_augmentation(mean=None, std=None)
    inputs = ClassPairViews(plain, (ViewGroup(3, 4),), 2, 0, Ranks(size=1, rank=0))
    images, others = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.full((2, 1, 4, 4), 255, dtype=torch.uint8)
    views = inputs.draw((images, others), 0)(slice(0, 2))
    assert [view.mean().item() for view in views] == [0, 1, 0]


def test_a_run_sees_positives_of_the_class(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 2, positives="class"), data=toys())
    _, (images, others) = next(iter(parts.loader.steps(0, 1)))
    assert images.shape == others.shape
    assert not torch.equal(images, others)


def test_a_run_with_positives_of_the_class_trains(tmp_path: Path) -> None:
    train(config(tmp_path, 2, positives="class"), data=toys())
    assert (tmp_path / "encoder.safetensors").exists()


@pytest.mark.parametrize("paired", [False, True])
def test_data_without_labels_is_refused(paired: bool, tmp_path: Path) -> None:
    images = ResidentImages(torch.zeros(64, 1, 8, 8, dtype=torch.uint8))
    source = PairedArrays(torch.zeros(64, 2), torch.zeros(64, 2)) if paired else images
    data = Dataset(name="toys", train=source, test=None)
    with pytest.raises(ValueError, match="positives must be 'views' for data without labels, got 'class'"):
        build(config(tmp_path, 2, positives="class"), data=data)
