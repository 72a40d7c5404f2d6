"""Where metrics go besides metrics.jsonl: TensorBoard always, Weights & Biases if asked for."""

from __future__ import annotations

import hashlib
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol


class Logger(Protocol):
    def write(self, row: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class TensorBoardLog:
    """Event files in the run directory; `tensorboard --logdir runs` shows them."""

    def __init__(self, path: Path, *, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # files are read in the order of their names, which begin with the second
        while any(path.glob(f"events.out.tfevents.{int(time.time())}.*")):
            time.sleep(0.05)
        # a resumed run writes again what came after its checkpoint
        self.writer = SummaryWriter(str(path), purge_step=step + 1 if step else None)

    def write(self, row: dict[str, Any]) -> None:
        for name, value in scalars(row):
            self.writer.add_scalar(f"{row['kind']}/{name}", value, row["step"])
        if row["kind"] == "evaluation":
            self.writer.flush()

    def close(self) -> None:
        self.writer.close()


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
    if importlib.util.find_spec("wandb") is None:
        raise ValueError(
            "wandb must be installed to log to Weights & Biases, got no such package; pip install 'flatclr[wandb]'."
        )


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
