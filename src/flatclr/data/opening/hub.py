"""Datasets of the Hugging Face hub, by the library `datasets`."""

from __future__ import annotations

from typing import Any

from flatclr.data.decoding import reason_of
from flatclr.data.opening.labelled_files import LabelledFiles, from_files
from flatclr.data.opening.names import TEST_PARTS, TRAIN_PART
from flatclr.data.opening.split import Split
from flatclr.data.sources import Blob, Dataset, HubRow
from flatclr.extras import needed

PREFIX = "hf:"


def open_hub(text: str, image_size: int | None, split: Split, *, download: bool) -> Dataset:
    """The dataset that `hf:NAME` or `hf:NAME:SPLIT` names."""
    hub = needed("datasets", by=text)
    name, _, part = text.removeprefix(PREFIX).partition(":")
    loaded = _load(hub, text, name, part, download=download)
    tables = {part: loaded} if part else dict(loaded)
    train_part = part or (TRAIN_PART if TRAIN_PART in tables else next(iter(tables)))
    test_part = next((key for key in TEST_PARTS if key in tables and key != train_part), None)
    train = _files(hub, tables[train_part], f"{text}/{train_part}")
    test = _files(hub, tables[test_part], f"{text}/{test_part}") if test_part else None
    label = _label_column(hub, tables[train_part])
    classes = tables[train_part].features[label].names if label else None
    return from_files(name, train, test, image_size, split, classes)


def _load(hub: Any, text: str, name: str, part: str, *, download: bool) -> Any:
    options = {} if download else {"download_config": hub.DownloadConfig(local_files_only=True)}
    try:
        return hub.load_dataset(name, split=part or None, **options)
    except Exception as error:  # the hub has its own kinds for every failure
        raise ValueError(
            f"{text} must name a dataset of the Hugging Face hub, got {reason_of(error)}; "
            "check the name, the split and the network."
        ) from error


def _label_column(hub: Any, table: Any) -> str | None:
    labels = [column for column, kind in table.features.items() if isinstance(kind, hub.ClassLabel)]
    return "label" if "label" in labels else next(iter(labels), None)


def _files(hub: Any, table: Any, source: str) -> LabelledFiles:
    columns = table.features
    image = next((column for column, kind in columns.items() if isinstance(kind, hub.Image)), None)
    if image is None:
        raise ValueError(f"{source} must have a column of images, got {', '.join(columns)}; pick another dataset.")
    undecoded = table.cast_column(image, hub.Image(decode=False))
    files: list[Blob] = [HubRow(undecoded, image, row, source) for row in range(len(table))]
    label = _label_column(hub, table)
    numbers = [] if label is None else list(table[label])
    if label is None or any(number is None or number < 0 for number in numbers):  # the hub hides some test labels so
        return LabelledFiles(files, None)
    return LabelledFiles(files, [columns[label].names[number] for number in numbers])
