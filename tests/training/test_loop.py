"""Building, looping and recording, each without the others."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flatclr
from flatclr import training
from flatclr.cli.display import JsonLines
from flatclr.distributed import Ranks
from flatclr.runs import RunDirectory
from flatclr.training import Evaluated, Event, Finished, Logged, Saved, Started, Warned
from flatclr.training.build import build
from flatclr.training.loop import Loop
from flatclr.training.recorder import Recorder
from flatclr.training.state import restore, state_of
from tests.support.training_worker import config

EVERY_EVENT: list[tuple[Event, dict[str, object]]] = [
    (Started(0, 9, Path("run"), nn.Identity()), {"kind": "start", "step": 0, "total_steps": 9, "run": "run"}),
    (Started(0, 9, None, nn.Identity()), {"kind": "start", "step": 0, "total_steps": 9, "run": None}),
    (Logged(3, 0.5, {"loss": 2.0}), {"kind": "log", "step": 3, "epoch": 0.5, "loss": 2.0}),
    (Evaluated(3, 0.5, {"knn": 0.9}), {"kind": "evaluation", "step": 3, "epoch": 0.5, "knn": 0.9}),
    (Saved(4), {"kind": "checkpoint", "step": 4}),
    (Warned(4, "mind."), {"kind": "warning", "step": 4, "message": "mind."}),
    (
        Finished(9, (Path("run/encoder.safetensors"),), {"knn": 0.9}),
        {"kind": "end", "step": 9, "encoders": ["run/encoder.safetensors"], "knn": 0.9},
    ),
]


class Remembered:
    """A record that keeps nothing but what it was told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.saved: list[int] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def save(self, step: int) -> None:
        self.saved.append(step)


@pytest.mark.parametrize(("event", "row"), EVERY_EVENT, ids=lambda value: getattr(value, "kind", ""))
def test_every_event_is_one_json_line_with_its_keys(
    event: Event, row: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    JsonLines()(event)
    assert json.loads(capsys.readouterr().out) == row
    assert list(event.row()) == list(row)


def test_events_cannot_be_changed_by_who_hears_them() -> None:
    for event, _ in EVERY_EVENT:
        with pytest.raises(dataclasses.FrozenInstanceError):
            event.step = 7  # type: ignore[misc]


def test_a_loop_tells_what_happens_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"log_every": 3, "eval_every": 4, "eval_start": True, "checkpoint_every": 5}
    record = Remembered()
    metrics = Loop(build(config(tmp_path / "run", 6, **settings)), record).run()
    told = [(event.kind, event.step) for event in record.events]
    assert told == [
        ("evaluation", 0),
        ("log", 3),
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
    Loop(fresh, Remembered(), step=restore(fresh, states[4])).run()
    torch.testing.assert_close(
        fresh.train_step.network.state_dict(), whole.train_step.network.state_dict(), rtol=0, atol=0
    )


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


def test_only_the_first_process_writes_and_is_heard(tmp_path: Path) -> None:
    heard: list[Event] = []
    parts = dataclasses.replace(build(config(tmp_path, 6)), ranks=Ranks(rank=1, size=2))
    run = RunDirectory.create(tmp_path / "run", {})
    recorder = Recorder(parts, run, [heard.append])
    before = sorted(run.path.iterdir())
    with recorder.logging(0):
        recorder.tell(Logged(3, 0.5, {"loss": 2.0}))
        recorder.save(3)
        recorder.finish(3, {})
    assert (sorted(run.path.iterdir()), heard) == (before, [])


def test_a_recorder_writes_an_event_before_it_passes_it_on(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    seen: list[int] = []
    recorder = Recorder(build(config(tmp_path, 6)), run, [lambda _: seen.append(len(run.metrics()))])
    recorder.tell(Warned(0, "mind."))
    recorder.tell(Logged(3, 0.5, {"loss": 2.0}))
    assert seen == [0, 1]
    assert run.metrics() == [{"step": 3, "epoch": 0.5, "kind": "log", "loss": 2.0}]


def test_what_users_call_is_exported_and_documented() -> None:
    assert flatclr.train is training.train
    assert flatclr.TrainConfig is training.TrainConfig
    for name in training.__all__:
        exported = getattr(training, name)
        if isinstance(exported, type) or inspect.isfunction(exported):
            assert inspect.getdoc(exported), name
            assert (inspect.getdoc(exported) or "").splitlines()[0].endswith((".", ":")), name
    for part in ("Args:", "Returns:", "Raises:", ">>> "):
        assert part in (flatclr.train.__doc__ or "")
    documented = re.findall(r"^        (\w+): ", flatclr.train.__doc__ or "", re.MULTILINE)
    assert set(inspect.signature(flatclr.train).parameters) <= set(documented)
