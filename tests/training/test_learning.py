"""Every objective by name learns from images: both gauges of an encoder end far above those of the untrained one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flatclr.objectives import OBJECTIVES
from flatclr.training.events import Evaluated, Event
from flatclr.training.trainer import train
from tests.support.training_worker import config

QUICK = ("flo", "nwj")
SETTINGS: dict[str, Any] = {"batch_size": 32, "learning_rate": 1e-2, "encoder_options": {"width": 8}, "steps": 150}
SLOWER = {name: {"learning_rate": 3e-3, "steps": 300} for name in ("barlow_twins", "rpc")}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in OBJECTIVES]
)
def test_a_short_run_learns(name: str, tmp_path: Path) -> None:
    heard: list[Event] = []
    settings = {**SETTINGS, **SLOWER.get(name, {}), "eval_start": True, "eval_samples": 1000, "recalibrate": True}
    train(config(tmp_path / "run", objective=name, **settings), on_event=[heard.append])
    untrained, *_, trained = (event.metrics for event in heard if isinstance(event, Evaluated))
    assert trained["pool_mi_best_nats"] > untrained["pool_mi_best_nats"] + 0.5
    assert trained["knn"] > untrained["knn"] + 0.05  # three standard errors of 1,000 images
