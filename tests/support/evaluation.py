"""Pictures of stripes, an encoder for them, and `flatclr eval` as it is called."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from flatclr.cli.main import main
from flatclr.data.sources import Dataset, ResidentImages
from flatclr.models.encoders import Encoder, build_encoder
from flatclr.models.network import Normalisation

CLASSES = ("upright", "level", "both")


def pictures(samples: int, *, seed: int, size: int = 12, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Noise with upright stripes, level stripes, or both: three classes in turn."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 40, (samples, channels, size, size), generator=generator, dtype=torch.uint8)
    labels = torch.arange(samples) % 3
    images[labels != 1, :, :, ::3] += 80
    images[labels != 0, :, ::3, :] += 80
    return images, labels


def small_data(**options: int) -> Dataset:
    parts = [pictures(n, seed=seed, **options) for seed, n in enumerate((240, 90))]
    train, test = (
        ResidentImages(*part, CLASSES, name=name) for part, name in zip(parts, ("train", "test"), strict=True)
    )
    return Dataset("pictures", train, test)


def small_encoder(*, seed: int = 0, size: int = 12, channels: int = 1) -> Encoder:
    torch.manual_seed(seed)
    encoder = build_encoder("cnn", channels=channels, image_size=size, width=4)
    encoder.normalisation = Normalisation((0.5,) * channels, (0.5,) * channels)
    return encoder


def flatclr_eval(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["flatclr", *map(str, arguments)])
    main()


def with_test_part(images: Tensor, labels: Tensor, classes: tuple[str, ...]) -> Dataset:
    return Dataset("pictures", small_data().train, ResidentImages(images, labels, classes, name="test"))
