"""A loop tells what happens, saves in time, and goes on where a state was taken."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from flatclr.training import Evaluated, Event
from flatclr.training.build import build
from flatclr.training.loop import Loop
from flatclr.training.state import restore, state_of
from tests.support.training_worker import config


class Remembered:
    """A record that keeps nothing but what it was told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.saved: list[int] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def save(self, step: int) -> None:
        self.saved.append(step)


def test_a_loop_tells_what_happens_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"log_every": 3, "eval_every": 4, "eval_start": True, "checkpoint_every": 5}
    record = Remembered()
    metrics = Loop(build(config(tmp_path / "run", 6, **settings)), record).run()
    told = [(event.kind, event.step) for event in record.events if event.kind != "progress"]
    assert told == [
        ("evaluation", 0),
        ("log", 3),
        ("forecast", 3),
        ("evaluation", 4),
        ("log", 6),
        ("evaluation", 6),
    ]
    assert record.saved == [5, 6]
    assert record.events[-1] == Evaluated(6, 6 / 1250, metrics)
    assert not list(tmp_path.iterdir())


def test_a_loop_saves_when_the_minutes_are_over(tmp_path: Path) -> None:
    record = Remembered()
    Loop(build(config(tmp_path, 3, checkpoint_every=100, checkpoint_minutes=1e-9)), record).run()
    assert record.saved == [1, 2, 3]


def test_a_loop_goes_on_where_a_state_was_taken(tmp_path: Path) -> None:
    whole, fresh = (build(config(tmp_path, 6)) for _ in range(2))
    states: dict[int, dict[str, Any]] = {}

    class Kept(Remembered):
        def save(self, step: int) -> None:
            states[step] = deepcopy(state_of(whole, step))

    Loop(whole, Kept()).run()
    assert restore(fresh, states[4], tmp_path) == []
    Loop(fresh, Remembered(), step=4).run()
    torch.testing.assert_close(
        fresh.train_step.network.state_dict(), whole.train_step.network.state_dict(), rtol=0, atol=0
    )
