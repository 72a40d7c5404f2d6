"""Settings that work, by name: functions that return a whole config; a variant calls the one it changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flatclr.training.config import TrainConfig


def small() -> TrainConfig:
    """A few minutes on two CPU cores with the embedded images."""
    return TrainConfig(epochs=5.0)


def small_images() -> TrainConfig:
    """Any images of about 32 pixels on one GPU: eight views of 16 pixels, batch 256; nothing tuned to a dataset."""
    return TrainConfig(
        views={"crop_scale": [0.08, 1.0]},
        views_per_image=8,
        view_size=16,
        encoder="resnet18",
        batch_size=256,
        epochs=120.0,
        optimizer="sgd",
        learning_rate=0.24,
        weight_decay=5e-4,
        warmup_epochs=2.0,
        precision="bf16",
        log_every=200,
        eval_every=4000,
    )


def cifar10_fast() -> TrainConfig:
    """As small-images on CIFAR-10, longer, with few evaluations: for the least time to 90 %."""
    return replace(
        small_images(),
        data="cifar10",
        epochs=215.0,
        log_every=195,
        eval_every=8190,
        eval_start=False,
        eval_samples=50_000,
        checkpoint_every=8190,
    )


def cifar10() -> TrainConfig:
    """SimCLR's setting for CIFAR-10 with FlatNCE under ESS control at batch 32, for one GPU."""
    return TrainConfig(
        data="cifar10",
        encoder="resnet18",
        batch_size=32,
        epochs=100.0,
        optimizer="sgd",
        learning_rate=0.06,
        weight_decay=5e-4,
        warmup_epochs=1.0,
        precision="bf16",
        eval_every=5000,
    )


def cifar10_infonce() -> TrainConfig:
    """SimCLR itself in that setting: InfoNCE at temperature 0.5."""
    return replace(cifar10(), objective="infonce", ess_target=None, temperature=0.5)


def cifar10_two_views() -> TrainConfig:
    """As cifar10 at batch 256 with two views of 20 pixels."""
    return replace(
        cifar10(),
        view_size=20,
        batch_size=256,
        epochs=180.0,
        learning_rate=0.24,
        warmup_epochs=2.0,
        log_every=195,
        eval_every=3900,
        eval_start=False,
        eval_samples=50_000,
        checkpoint_every=3900,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "small": small,
    "small-images": small_images,
    "cifar10": cifar10,
    "cifar10-infonce": cifar10_infonce,
    "cifar10-two-views": cifar10_two_views,
    "cifar10-fast": cifar10_fast,
}
"""Functions that return a whole config, by the name that `flatclr train --recipe` takes."""
