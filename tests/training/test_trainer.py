"""Training teaches the encoder, with every objective, and stops where it diverges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import flatclr
from flatclr import training
from flatclr.runs import RunDirectory
from flatclr.training.build import build
from flatclr.training.errors import TrainingStoppedError
from flatclr.training.instruments import evaluation_metrics
from flatclr.training.recorder import Recorder
from flatclr.training.trainer import fit, train
from tests.support.training_worker import config


def test_the_package_exports_what_trains() -> None:
    assert flatclr.train is training.train
    assert flatclr.TrainConfig is training.TrainConfig


def test_training_teaches_the_encoder(tmp_path: Path) -> None:
    settings = {"batch_size": 32, "encoder_options": {"width": 16}, "log_every": 50, "eval_samples": 5000}
    parts = build(config(tmp_path / "run", 150, **settings))
    before = evaluation_metrics(parts, step=0)
    after = fit(Recorder(parts)).metrics
    assert after["pool_mi_best_nats"] > before["pool_mi_best_nats"] + 0.3
    assert after["knn"] > 0.7


def test_a_run_that_diverges_stops_with_advice(tmp_path: Path) -> None:
    parts = build(config(tmp_path / "run", 50, max_bad_steps=3))
    with torch.no_grad():
        next(parts.train_step.network.parameters()).fill_(float("nan"))
    before = [p.clone() for p in parts.train_step.network.parameters()]
    with pytest.raises(TrainingStoppedError, match=r"got 3 bad steps in a row .* lower the learning rate"):
        fit(Recorder(parts))
    after = list(parts.train_step.network.parameters())
    assert all(torch.equal(a, b) for a, b in zip(after[1:], before[1:], strict=True))  # bad steps change nothing


@pytest.mark.parametrize("name", flatclr.objectives.OBJECTIVES)
def test_every_objective_trains_by_name(name: str, tmp_path: Path) -> None:
    result = train(config(tmp_path / "run", 2, objective=name))
    assert all(isinstance(row.get("loss", 0.0), float) for row in RunDirectory.open(result.path).metrics())
