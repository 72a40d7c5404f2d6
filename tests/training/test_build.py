"""Building writes nothing, draws the same weights again, and refuses what cannot be built."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from flatclr.training.build import build
from flatclr.training.trainer import train
from tests.support.training_worker import config


def test_building_writes_nothing_and_draws_the_same_weights_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, again = (build(config(tmp_path / "run", 6)) for _ in range(2))
    assert not list(tmp_path.iterdir())
    torch.testing.assert_close(
        first.train_step.network.state_dict(), again.train_step.network.state_dict(), rtol=0, atol=0
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.device = torch.device("meta")  # type: ignore[misc]


def test_a_batch_larger_than_the_data_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"batch_size must be .* <= 10000, got 20000"):
        train(config(tmp_path / "run", 2, batch_size=20_000))
    assert not (tmp_path / "run").exists()
