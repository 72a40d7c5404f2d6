"""Runs to examine, each with the fault that was put into it, and what is kept of them."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

import flatclr
from flatclr.data.sources import Dataset, ResidentImages
from flatclr.runs import RunDirectory
from flatclr.training.config import TrainConfig
from flatclr.training.errors import TrainingStoppedError

DIGITS = 5  # of the numbers that are kept
SHARED = TrainConfig(log_every=10, checkpoint_every=10**6, device="cpu")  # what the runs of all benches share
LEFT_OUT = ("out", "wandb", "data_dir", "workers", "labels")  # of the settings; they are those of a machine


@dataclass(frozen=True)
class Images:
    """A labelled dataset in memory: uint8 [N, C, S, S], class numbers [N]."""

    train: torch.Tensor
    train_labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor

    def dataset(self, *, labelled: bool = True) -> Dataset:
        train = ResidentImages(self.train, self.train_labels if labelled else None, name="bench")
        test = ResidentImages(self.test, self.test_labels if labelled else None, name="bench, test")
        return Dataset("bench", train, test)


@dataclass(frozen=True)
class Case:
    """One run.

    Args:
        name: by which it is kept.
        fault: the finding that names what is wrong with it; None: nothing is.
        settings: of the run, besides those of its bench.
        data: what is done to the images of the bench; None: nothing.
        labelled: whether labels are known.
        encoder, views: of its own instead of those the settings name.
    """

    name: str
    fault: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Callable[[Images], Images] | None = None
    labelled: bool = True
    encoder: Callable[[], nn.Module] | None = None
    views: Callable[[torch.Tensor], torch.Tensor] | None = None


@dataclass(frozen=True)
class Bench:
    """Cases on one dataset.

    Args:
        name: of the file that keeps it.
        base: the settings they share.
        cases: the runs.
        images: reads the dataset, from the path that was given.
    """

    name: str
    base: TrainConfig
    cases: tuple[Case, ...]
    images: Callable[[Path | None], Images]


def run(case: Case, bench: Bench, images: Images) -> dict[str, Any]:
    """Train, and return what is kept: the settings, the metrics and the seconds it took."""
    torch.set_num_threads(1)
    started = time.process_time()
    data = (images if case.data is None else case.data(images)).dataset(labelled=case.labelled)
    stopped = None
    with TemporaryDirectory() as folder:
        config = bench.base.changed(**case.settings, out=folder)
        encoder = None if case.encoder is None else case.encoder()
        try:
            flatclr.train(config, data=data, encoder=encoder, views=case.views, progress=False)
        except TrainingStoppedError as error:
            stopped = str(error)
        directory = RunDirectory.open(Path(folder))
        settings = {name: value for name, value in directory.config().items() if name not in LEFT_OUT}
        rows = [_short(row) for row in directory.metrics()]
    seconds = time.process_time() - started
    return {
        "case": case.name,
        "fault": case.fault,
        "seconds": round(seconds, 1),
        "stopped": stopped,
        "settings": settings,
        "rows": rows,
    }


def kept(path: Path) -> Iterator[dict[str, Any]]:
    """The runs of a file, one after another."""
    if path.exists():
        with gzip.open(path, "rt") as file:
            yield from map(json.loads, file)


def keep(path: Path, record: Mapping[str, Any]) -> None:
    """Add a run to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(gzip.compress((json.dumps(record) + "\n").encode(), mtime=0))


def _short(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _short(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_short(part) for part in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
