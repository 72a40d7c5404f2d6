"""What is written of a run and told to its listeners."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import re
from pathlib import Path

import pytest
from PIL import Image
from torch import nn

import flatclr
from flatclr.data.sources import SkippedImagesWarning
from flatclr.distributed import Ranks
from flatclr.runs import RunDirectory
from flatclr.training.build import build
from flatclr.training.display import Display, JsonLines
from flatclr.training.errors import TrainingStoppedError
from flatclr.training.events import Evaluated, Event, Finished, Logged, Started, Warned
from flatclr.training.recorder import Recorder
from flatclr.training.trainer import train
from tests.support.training_worker import config


def test_a_full_disk_while_metrics_are_written_stops_the_run_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunDirectory, "append_metrics", full)
    with pytest.raises(TrainingStoppedError, match="the metrics must be writable, got No space left on device"):
        train(config(tmp_path / "run", 8))


def test_callbacks_hear_every_row_of_metrics(tmp_path: Path) -> None:
    heard: list[Event] = []
    result = flatclr.train(config(tmp_path / "run", 10, eval_start=True), on_event=[heard.append])
    rows = RunDirectory.open(result.path).metrics()
    assert [event.row() for event in heard if isinstance(event, Logged | Evaluated)] == rows
    assert rows[0]["kind"] == "evaluation"
    assert rows[0]["step"] == 0  # the untrained encoder
    assert [type(heard[0]), type(heard[-1])] == [Started, Finished]


def test_listeners_get_numbers_and_files_get_text_where_a_loss_is_not_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[Event] = []
    display = Display()
    broken = nn.Sequential(nn.Flatten(), nn.Linear(784, 8))
    nn.init.constant_(broken[1].weight, math.nan)
    settings = config(tmp_path / "run", 4, log_every=2, max_bad_steps=4)
    with display, pytest.raises(TrainingStoppedError, match="bad steps in a row"):
        train(settings, encoder=broken, on_event=[display, JsonLines(), heard.append])
    (logged,) = [event for event in heard if isinstance(event, Logged)]
    assert math.isnan(logged.metrics["loss"])
    assert [row["loss"] for row in RunDirectory(tmp_path / "run").metrics() if row["kind"] == "log"] == ["nan"]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [line["loss"] for line in lines if line["kind"] == "log"] == ["nan"]


def test_unreadable_images_are_said_once_and_the_first_is_named(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(24):
        Image.new("L", (12, 12), 10 * i).save(folder / f"{i:02d}.png")
    (folder / "07.png").write_bytes(b"no image")
    events: list[Event] = []
    train(config(tmp_path / "run", 2, data=folder), on_event=[events.append])
    heard = [event.message for event in events if isinstance(event, Warned)]
    assert [message for message in heard if "unreadable" in message] == [
        next(message for message in heard if re.search(r"^1 image is unreadable .* the first .*07\.png: ", message))
    ]
    assert not recwarn.list


def test_unreadable_images_are_warned_of_where_nobody_listens(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for i in range(24):
        Image.new("L", (12, 12), 10 * i).save(tmp_path / "images" / f"{i:02d}.png")
    (tmp_path / "images" / "07.png").write_bytes(b"no image")
    with pytest.warns(SkippedImagesWarning):
        train(config(tmp_path / "run", 2, data=tmp_path / "images"))


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
