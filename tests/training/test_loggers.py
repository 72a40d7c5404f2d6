"""TensorBoard and Weights & Biases."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flatclr.runs import RunDirectory
from flatclr.training.config import TrainConfig
from flatclr.training.trainer import train
from tests.support.training_worker import config


def _back(stamp: float) -> float:
    return stamp - 3600


@pytest.mark.parametrize("clock", [None, _back], ids=["clock goes on", "clock goes back"])
@pytest.mark.parametrize("checkpoints", ["step-000000010.*", "*"], ids=["from a checkpoint", "from the seed"])
def test_tensorboard_shows_what_metrics_hold_also_after_a_resume(
    checkpoints: str, clock: Callable[[float], float] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train(config(tmp_path / "run", 10, eval_every=5, eval_start=True))
    (result.path / "events.out.tfevents.backup").write_text("somebody's")
    for file in (result.path / "checkpoint").glob(checkpoints):
        file.unlink()
    if clock is not None:
        now = time.time
        monkeypatch.setattr(time, "time", lambda: clock(now()))
    train(TrainConfig(), resume=result.path)
    events = EventAccumulator(str(result.path)).Reload()
    rows = RunDirectory.open(result.path).metrics()
    for kind, name in (("log", "ess"), ("log", "loss"), ("evaluation", "knn")):
        wanted = [(row["step"], row[name]) for row in rows if row["kind"] == kind]
        got = [(event.step, event.value) for event in events.Scalars(f"{kind}/{name}")]
        assert got == [(step, pytest.approx(value, rel=1e-6)) for step, value in wanted]


def test_wandb_is_asked_for_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="Weights & Biases needs wandb, which is not installed"):
        train(config(tmp_path / "run", 2, wandb="project"))
    assert not (tmp_path / "run").exists()
