"""Data and views that come from Python, as a run takes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from flatclr.data.decoding import available_cores
from flatclr.data.opening import dataset_from
from flatclr.data.sources import Dataset, ImageSource, ItemImages, PairedArrays, ReadyViews
from flatclr.data.sources.items import item_of
from flatclr.data.sources.ready import ViewsBy, label_in_item, view_tensor, views_in_item
from flatclr.training.config import TrainConfig

MOST_WORKERS = 16

Views = Callable[..., Any]


def is_named(data: Any) -> bool:
    """Whether a setting can name it."""
    return isinstance(data, str | Path)


def own_dataset(data: Any, config: TrainConfig, views: Views | None) -> Dataset | None:
    """What a program passed as data and views; None where the config alone says what is trained on."""
    if isinstance(data, torch.utils.data.DataLoader):
        if views is not None:
            raise ValueError("views must be left to the DataLoader, got a function too; pass one of them.")
        return _from_loader(data, config)
    if views is None:
        return None if data is None else _from_data(data, config)
    if not callable(views):
        raise TypeError(f"views must be a function from an image to a view, got {type(views).__name__}; pass one.")
    given = config.data if data is None else data
    dataset = dataset_from(
        given, data_dir=config.data_dir, image_size=config.image_size, labels=config.labels, seed=config.seed
    )
    if isinstance(dataset.train, PairedArrays | ReadyViews):
        raise ValueError(f"views must be None for {dataset.name}, got a function; it is views already.")
    made = ReadyViews(
        _with_labels(ViewsBy(_images_of(dataset.train), views, config.views_per_image), dataset.train.labels),
        len(dataset.train),
        name=f"views of {dataset.name}",
        workers=_workers(config),
        seed=config.seed,
        fingerprint=dataset.train.fingerprint(),
    )
    return Dataset(dataset.name, made, None)


def _with_labels(views_of: ViewsBy, labels: torch.Tensor | None) -> Callable[[int], tuple[torch.Tensor, ...]]:
    return views_of if labels is None else lambda i: (*views_of(i), labels[i])


def _workers(config: TrainConfig) -> int:
    return config.workers or min(MOST_WORKERS, max(1, available_cores() - 1))


def _images_of(source: ImageSource) -> Callable[[int], Any]:
    """Items as they came, or uint8 tensors [C, S, S]."""
    if isinstance(source, ItemImages):
        items, name = source.items, source.name
        return lambda i: item_of(items[i], name).image
    return lambda i: source.batch(torch.tensor([i]))[0]


def _from_data(data: Any, config: TrainConfig) -> Dataset:
    has_items = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Dataset)
    if has_items and len(data) and not isinstance(data, torch.Tensor) and not hasattr(data, "dtype"):
        try:
            item = data[0]
        except (KeyError, TypeError):  # a mapping of splits
            item = None
        if not isinstance(data, tuple) and views_in_item(item) is not None:
            return _of_ready_items(data, config)
    return dataset_from(data, image_size=config.image_size, labels=config.labels, seed=config.seed)


def _of_ready_items(data: Any, config: TrainConfig) -> Dataset:
    def sample(number: int) -> tuple[torch.Tensor, ...]:
        item = data[number]
        views, label = tuple(view_tensor(view) for view in views_in_item(item) or ()), label_in_item(item)
        return views if label is None else (*views, label)

    views = ReadyViews(sample, len(data), workers=_workers(config), seed=config.seed, fingerprint=type(data).__name__)
    return Dataset("data", views, None)


def _from_loader(loader: Any, config: TrainConfig) -> Dataset:
    """The samples of a DataLoader, put together by its own function, in batches and an order of the run's."""
    dataset = loader.dataset
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"a DataLoader must have a map-style dataset, got {type(dataset).__name__}, which can only be read in "
            "order; pass a dataset with items by number."
        )
    views = ReadyViews(
        dataset.__getitem__,
        len(dataset),
        name="the DataLoader",
        workers=loader.num_workers,
        seed=config.seed,
        collate=loader.collate_fn,
        fingerprint=type(dataset).__name__,
    )
    return Dataset("data", views, None)
