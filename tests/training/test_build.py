"""Building writes nothing, and draws the same weights again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from flatclr.training.build import build
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
