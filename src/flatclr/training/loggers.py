"""Where metrics go besides metrics.jsonl: TensorBoard always, Weights & Biases if asked for."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from flatclr.extras import needed
from flatclr.runs import EVENTS

WRITTEN = re.compile(r"events\.out\.tfevents\.\d+\.")  # the names that TensorBoard gives


class Logger(Protocol):
    def write(self, row: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class TensorBoardLog:
    """Event files in the run directory; `tensorboard --logdir runs` shows them."""

    def __init__(self, path: Path, *, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        own = [file for file in sorted(path.glob(EVENTS)) if WRITTEN.match(file.name)]
        earlier = _moved_before(own, int(time.time()))
        # a resumed run writes again what came after its checkpoint; without one, all of it
        self.writer = SummaryWriter(str(path), purge_step=(step + 1 if step else 0) if earlier else None)

    def write(self, row: dict[str, Any]) -> None:
        for name, value in scalars(row):
            self.writer.add_scalar(f"{row['kind']}/{name}", value, row["step"])
        if row["kind"] == "evaluation":
            self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def _moved_before(files: Sequence[Path], second: int) -> list[Path]:
    """The files of earlier parts of a run, in order, under names of earlier seconds than this one.

    They are read in the order of their names, which begin with the second they were begun in; a clock may go back.
    """
    stamps = [int(file.name.split(".")[3]) for file in files]
    if not stamps or stamps[-1] < second:
        return list(files)
    moved = []
    for stamp, file in enumerate(files, start=second - len(files)):
        rest = file.name.split(".", 4)[4]
        moved.append(file.rename(file.with_name(f"events.out.tfevents.{stamp:010d}.{rest}")))
    return moved


class WandbLog:
    """A run of Weights & Biases, named as the run directory and resumed with it."""

    def __init__(self, project: str, path: Path, config: dict[str, Any]) -> None:
        import wandb

        # another run of the same name is another run
        identity = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
        self.run = wandb.init(project=project, name=path.name, id=identity, resume="allow", dir=path, config=config)

    def write(self, row: dict[str, Any]) -> None:
        self.run.log({f"{row['kind']}/{name}": value for name, value in scalars(row)}, step=row["step"])

    def close(self) -> None:
        self.run.finish()


def require_wandb() -> None:
    needed("wandb", by="logging to Weights & Biases")


def scalars(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """
    >>> dict(scalars({"kind": "log", "step": 3, "ess": 0.5, "ess_quantiles": [0.1, 0.9], "gradient_snr": None}))
    {'ess': 0.5, 'ess_quantiles/0': 0.1, 'ess_quantiles/1': 0.9}
    """
    for name, value in row.items():
        if name in ("kind", "step"):
            continue
        if isinstance(value, int | float):
            yield name, float(value)
        elif isinstance(value, list):
            yield from ((f"{name}/{i}", float(v)) for i, v in enumerate(value))
