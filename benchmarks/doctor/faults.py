"""What is done to data, encoders and views to break a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.doctor.cases import Images
from flatclr.models.encoders import build_encoder

STILL = {"flip_probability": 0.0, "jitter_probability": 0.0, "grayscale_probability": 0.0}  # views that are crops alone


def pooled(images: Images, side: int) -> Images:
    """Smaller images, which train in seconds."""
    train, test = (
        torch.nn.functional.adaptive_avg_pool2d(part.float(), side).round().byte()
        for part in (images.train, images.test)
    )
    return replace(images, train=train, test=test)


def few_distinct(count: int, *, noise: float, total: int = 4000) -> Callable[[Images], Images]:
    """The first images over and over, as the frames of a film are."""

    def change(images: Images) -> Images:
        index = torch.arange(total) % count
        generator = torch.Generator().manual_seed(0)
        copies = images.train[index].float()
        copies += noise * torch.randn(copies.shape, generator=generator)
        return replace(images, train=copies.clamp(0, 255).byte(), train_labels=images.train_labels[index])

    return change


def few_classes(*classes: int, most: int = 4000) -> Callable[[Images], Images]:
    """The images of some classes alone, which are numbered anew."""

    def of(part: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.isin(labels, torch.tensor(classes))
        numbers = (labels[kept, None] == torch.tensor(classes)).long().argmax(1)
        return part[kept][:most], numbers[:most]

    def change(images: Images) -> Images:
        return Images(*of(images.train, images.train_labels), *of(images.test, images.test_labels))

    return change


def fewer(*, train: int | None = None, test: int | None = None) -> Callable[[Images], Images]:
    """The first images alone."""
    return lambda images: Images(
        images.train[:train], images.train_labels[:train], images.test[:test], images.test_labels[:test]
    )


def leaked(share: float) -> Callable[[Images], Images]:
    """So many of the test images are training images."""

    def change(images: Images) -> Images:
        copies = round(share * len(images.test))
        test, labels = images.test.clone(), images.test_labels.clone()
        test[:copies], labels[:copies] = images.train[:copies], images.train_labels[:copies]
        return replace(images, test=test, test_labels=labels)

    return change


def coded(strength: float, *, channels: int = 2) -> Callable[[Images], Images]:
    """Channels of one value each that tell an image from all others and say nothing of its class, as bits that are
    added to images do in Chen, Luo & Li 2021; images of several channels become grey."""

    def of(part: Tensor, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        values = 127.5 + strength * 255 * (torch.rand(len(part), channels, 1, 1, generator=generator) - 0.5)
        grey = part if part.shape[1] == 1 else part.float().mean(1, keepdim=True).byte()
        return torch.cat([grey, values.byte().expand(-1, -1, *part.shape[2:])], 1)

    return lambda images: replace(images, train=of(images.train, 0), test=of(images.test, 1))


def sleeping(seconds: float) -> Callable[[Tensor], Tensor]:
    """A view that takes its time."""
    return Sleeping(seconds)


class Sleeping:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, image: Tensor) -> Tensor:
        time.sleep(self.seconds)
        top, left = torch.randint(0, 4, (2,)).tolist()
        side = image.shape[-1] - 4
        view = image[:, top : top + side, left : left + side].float() / 255
        return view + 0.1 * torch.randn(view.shape)


def dead_encoder(
    share: float, *, name: str, side: int, channels: int = 1, **options: object
) -> Callable[[], nn.Module]:
    """Batch normalisation with biases so low that a ReLU takes all, for a share of its units."""

    return lambda: with_dead_units(build_encoder(name, channels=channels, image_size=side, **options), share)


def with_dead_units(encoder: nn.Module, share: float) -> nn.Module:
    """The encoder itself, changed."""
    with torch.no_grad():
        for layer in encoder.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.bias[: round(share * len(layer.bias))] = -8.0
    return encoder


def stale_encoder(
    momentum: float, *, name: str, side: int, channels: int = 1, **options: object
) -> Callable[[], nn.Module]:
    """Batch normalisation whose running statistics hardly follow the data."""

    def build() -> nn.Module:
        encoder = build_encoder(name, channels=channels, image_size=side, **options)
        for layer in encoder.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.momentum = momentum
        return encoder

    return build
