"""Every objective by name learns from images: mutual information between fresh views rises far above untrained."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatclr.objectives import OBJECTIVES
from flatclr.training.events import Evaluated, Event
from flatclr.training.trainer import train
from tests.support.training_worker import config

QUICK = ("flo", "nwj")
STEPS = 60


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in OBJECTIVES]
)
def test_a_short_run_learns(name: str, tmp_path: Path) -> None:
    heard: list[Event] = []
    settings = {"encoder_options": {"width": 8}, "batch_size": 32, "eval_start": True, "eval_samples": 300}
    train(config(tmp_path / "run", STEPS, objective=name, **settings), on_event=[heard.append])
    untrained, *_, trained = (event.metrics for event in heard if isinstance(event, Evaluated))
    print(name, untrained["pool_mi_best_nats"], trained["pool_mi_best_nats"])
    assert trained["pool_mi_best_nats"] > untrained["pool_mi_best_nats"] + 0.25
