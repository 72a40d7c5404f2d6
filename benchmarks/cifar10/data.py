"""The images of a scale on disk: as they are, and with part of the training images in the place of the test images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cifar10.plan import FULL, PlannedRun, Scale
from flatclr.data import Dataset, ResidentImages, open_dataset, seeded_generator

HELD_OUT, TINY_IMAGES = "held-out.npz", "tiny.npz"


def require_images(scale: Scale, data_dir: Path | None) -> None:
    """Data that are missing are missed before anything is written."""
    if scale is FULL:
        open_dataset("cifar10", data_dir=data_dir, download=False)


def prepare(scale: Scale, runs: Path, data_dir: Path | None, *, held_out: bool) -> None:
    """Write the files that `places` names, unless they are there."""
    if scale is not FULL and not (runs / TINY_IMAGES).exists():
        train, test = _resident(open_dataset())
        _save(runs / TINY_IMAGES, _some(train, scale.images), _some(test, scale.images))
    whole = places(scale, runs, data_dir)
    train, _ = _resident(open_dataset(whole["data"], data_dir=whole.get("data_dir"), download=False))
    if held_out and not (runs / HELD_OUT).exists():
        _save(runs / HELD_OUT, *_held_out(train, scale))


def dataset(scale: Scale, data_dir: Path | None, *, held_out: bool) -> Dataset:
    """The same images in memory, without a file."""
    if scale is FULL:
        train, test = _resident(open_dataset("cifar10", data_dir=data_dir, download=False))
    else:
        train, test = (_some(part, scale.images) for part in _resident(open_dataset()))
    if held_out:
        train, test = _held_out(train, scale)
    return Dataset("held-out" if held_out else scale.recipe, train, test)


def _held_out(train: ResidentImages, scale: Scale) -> tuple[ResidentImages, ResidentImages]:
    order = torch.randperm(len(train), generator=seeded_generator(0, "held out"))
    kept, out = order[scale.held_out :], order[: scale.held_out]
    return train.subset(kept, "train"), train.subset(out, "held out")


def places(scale: Scale, runs: Path, data_dir: Path | None, *, held_out: bool = False) -> dict[str, Any]:
    """The settings of a run that say where its images are."""
    if held_out:
        return {"data": str(runs / HELD_OUT)}
    if scale is not FULL:
        return {"data": str(runs / TINY_IMAGES)}
    return {"data": "cifar10"} | ({} if data_dir is None else {"data_dir": str(data_dir)})


def places_of(run: PlannedRun, scale: Scale, runs: Path, data_dir: Path | None) -> dict[str, Any]:
    return {**places(scale, runs, data_dir, held_out=run.held_out), "out": str(runs / run.name)}


def _resident(dataset: Dataset) -> tuple[ResidentImages, ResidentImages]:
    assert isinstance(dataset.train, ResidentImages)
    assert isinstance(dataset.test, ResidentImages)
    return dataset.train, dataset.test


def _some(images: ResidentImages, count: int) -> ResidentImages:
    order = torch.randperm(len(images), generator=seeded_generator(0, "some"))
    return images.subset(order[:count], images.name)


def _save(path: Path, train: ResidentImages, test: ResidentImages) -> None:
    assert train.labels is not None
    assert test.labels is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"part-{path.name}")
    np.savez(
        part,
        train_images=train.images.numpy(),
        train_labels=train.labels.numpy(),
        test_images=test.images.numpy(),
        test_labels=test.labels.numpy(),
        classes=np.array(train.classes),
    )
    part.replace(path)
