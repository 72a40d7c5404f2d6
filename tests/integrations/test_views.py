"""Transforms of the real libraries as views."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import flatclr
from tests.support.training_worker import config

IMAGES = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)


def trained(views: object, out: Path) -> flatclr.RunResult:
    return flatclr.train(config(out, 2, batch_size=8, eval_samples=4), data=IMAGES, views=views, progress=False)


@pytest.mark.slow
def test_albumentations_make_views(tmp_path: Path) -> None:
    albumentations = pytest.importorskip("albumentations")
    steps = [albumentations.RandomResizedCrop(size=(16, 16)), albumentations.HorizontalFlip()]
    assert trained(albumentations.Compose(steps), tmp_path / "run").steps == 2


@pytest.mark.slow
@pytest.mark.parametrize("container", ["AugmentationSequential", "Sequential"])
def test_kornia_makes_views(container: str, tmp_path: Path) -> None:
    kornia = pytest.importorskip("kornia.augmentation")
    steps = [kornia.RandomResizedCrop((16, 16)), kornia.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    views = nn.Sequential(*steps) if container == "Sequential" else kornia.AugmentationSequential(*steps)
    assert trained(views, tmp_path / "run").steps == 2
