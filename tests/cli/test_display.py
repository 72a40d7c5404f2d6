"""What a person at the terminal is told: interruptions, alarms, the version."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

import flatclr
from flatclr.cli.display import LiveDisplay
from flatclr.cli.main import app
from flatclr.runs import RunDirectory
from flatclr.training.events import Finished, Logged, Started

LOGGED = {
    **{"mi_nats": 1.0, "ceiling_nats": 2.0, "ess": 0.2, "beta": 3.0},
    **{"images_per_second": 1000.0, "views_per_second": 8000.0},
}


def started(tmp_path: Path) -> tuple[LiveDisplay, RunDirectory]:
    """A display that was told of a run."""
    run = RunDirectory.create(tmp_path / "run", {})
    display = LiveDisplay()
    display(Started(step=0, total_steps=2, run=run.path, network=nn.Identity()))
    return display, run


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ([4, 12], "from the checkpoint of step 12 go on with: flatclr train --resume"),
        ([], "before the first checkpoint"),
    ],
)
def test_an_interrupted_run_says_how_to_go_on(
    saved: list[int], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display, run = started(tmp_path)
    run.checkpoints.mkdir()
    for step in saved:
        (run.checkpoints / f"step-{step:09d}.pt").touch()
    display.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert said in " ".join(capsys.readouterr().out.split())


def test_an_alarm_is_said_when_it_begins_and_when_it_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display, _ = started(tmp_path)
    for step, collapsed in enumerate([False, True, True, False, False], 1):
        display(Logged(step, epoch=0.1, metrics={"loss": math.nan, "collapsed": collapsed, **LOGGED}))
    said = [line for line in capsys.readouterr().out.splitlines() if ": alarm, " in line]
    assert [line.strip() for line in said] == ["step 2: alarm, collapsed", "step 4: alarm, collapsed is over"]


def test_the_pace_of_the_last_log_line_is_said_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display, run = started(tmp_path)
    display(Logged(1, epoch=0.1, metrics={"loss": 1.0, **LOGGED}))
    display(Finished(step=2, encoders=(run.path / "encoder.safetensors",), metrics={}))
    assert "pace: 1,000 images/s, 8,000 views/s" in capsys.readouterr().out


def test_the_command_says_its_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"flatclr {flatclr.__version__}\n")
