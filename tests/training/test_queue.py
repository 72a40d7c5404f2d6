"""The queue of embeddings, and runs that use it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flatclr.runs import RunDirectory
from flatclr.training.config import TrainConfig
from flatclr.training.queue import EmbeddingQueue
from flatclr.training.trainer import train
from tests.support.training import assert_same
from tests.support.training_worker import config, network_of


def test_a_queue_with_a_momentum_encoder_trains_and_resumes(tmp_path: Path) -> None:
    moco = {
        "objective": "infonce",
        "pairing": "one_way",
        "momentum": 0.9,
        "queue": 64,
        "temperature": 0.2,
        "ess_target": None,
    }
    whole = train(config(tmp_path / "whole", 8, **moco)).path
    run = train(config(tmp_path / "run", 8, **moco)).path
    (run / "checkpoint" / "step-000000008.pt").unlink()
    train(TrainConfig(), resume=run)
    assert_same(network_of(run), network_of(whole))
    assert RunDirectory.open(whole).metrics()[0]["ceiling_nats"] == pytest.approx(
        torch.tensor(8.0 - 1 + 64 + 1).log().item()
    )


def test_a_queue_overwrites_its_oldest_rows_first() -> None:
    queue = EmbeddingQueue(5, 1)
    for start in (0.0, 3.0):
        queue.push(torch.arange(start, start + 3).view(3, 1))
    assert queue.rows.flatten().tolist() == [5.0, 1.0, 2.0, 3.0, 4.0]
