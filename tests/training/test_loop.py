"""A loop tells what happens, saves in time, and goes on where a state was taken."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flatclr.data import Dataset, ResidentImages
from flatclr.distributed import Ranks
from flatclr.training import Evaluated, Event, StopRequest, loop
from flatclr.training.build import build
from flatclr.training.loop import Loop
from flatclr.training.state import Start, restore, state_of
from flatclr.training.stopping import StopAskedError
from tests.support.training_worker import config


class Remembered:
    """A record that keeps nothing but what it was told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.saved: list[int] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def save(self, step: int, *, owes_evaluation: bool = False) -> None:
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


def test_a_loop_that_was_asked_to_stop_waits_for_the_other_processes_after_its_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, stop, saved_before = Remembered(), StopRequest(), list[int]()
    monkeypatch.setattr(loop, "wait_for_every_rank", lambda *_: saved_before.extend(record.saved))
    stopping = Loop(build(config(tmp_path, 3, checkpoint_every=100)), record, stop=stop)
    monkeypatch.setattr(stopping, "_give_signs", lambda: stop.ask("enough"))
    with pytest.raises(StopAskedError, match="enough"):
        stopping.run()
    assert saved_before == [1]


@pytest.mark.parametrize(("processes", "said"), [(1, False), (2, False), (4, True)])
def test_what_is_no_longer_bit_identical_on_many_processes_is_said(processes: int, said: bool, tmp_path: Path) -> None:
    parts = replace(build(config(tmp_path, 6)), ranks=Ranks(0, processes))
    heard = restore(parts, state_of(parts, 4), tmp_path)
    assert [("agree to rounding only" in line, "4 processes" in line) for line in heard] == [(True, True)] * said


def test_a_linear_probe_goes_along_at_its_own_pace(tmp_path: Path) -> None:
    record = Remembered()
    settings = {"eval_every": 4, "probe_every": 3, "log_every": 100, "checkpoint_every": 100}
    Loop(build(config(tmp_path, 6, **settings)), record).run()
    probed = {event.step: event.metrics.get("linear") for event in record.events if isinstance(event, Evaluated)}
    assert list(probed) == [3, 4, 6]
    assert probed[4] is None
    assert all(probed[step] is not None and 0.2 < probed[step] <= 1 for step in (3, 6))  # ten classes


def test_a_probe_without_labels_is_refused_before_any_work(tmp_path: Path) -> None:
    images = ResidentImages(torch.zeros(16, 1, 8, 8, dtype=torch.uint8))
    with pytest.raises(
        ValueError, match="probe_every must go with training and test images of known classes, got plain"
    ):
        build(config(tmp_path, 2, probe_every=1), data=Dataset("plain", images, None))


def test_a_loop_saves_what_is_to_be_kept(tmp_path: Path) -> None:
    record = Remembered()
    Loop(build(config(tmp_path, 6, checkpoint_every=5, keep_checkpoints="every:2")), record).run()
    assert record.saved == [2, 4, 5, 6]


def test_a_loop_goes_on_where_a_state_was_taken(tmp_path: Path) -> None:
    whole, fresh = (build(config(tmp_path, 6)) for _ in range(2))
    states: dict[int, dict[str, Any]] = {}

    class Kept(Remembered):
        def save(self, step: int, *, owes_evaluation: bool = False) -> None:
            states[step] = deepcopy(state_of(whole, step))

    Loop(whole, Kept()).run()
    assert restore(fresh, states[4], tmp_path) == []
    Loop(fresh, Remembered(), start=Start(4)).run()
    torch.testing.assert_close(
        fresh.train_step.network.state_dict(), whole.train_step.network.state_dict(), rtol=0, atol=0
    )
