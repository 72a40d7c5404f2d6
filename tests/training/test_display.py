"""What a person at the terminal is told: interruptions, alarms, the version."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import flatclr
from flatclr.cli.main import app
from flatclr.runs import RunDirectory
from flatclr.training.display import Bar, Display
from flatclr.training.events import Finished, Forecast, Logged, Progressed, Started

LOGGED = {
    **{"mi_nats": 1.0, "ceiling_nats": 2.0, "ess": 0.2, "beta": 3.0},
    **{"images_per_second": 1000.0, "views_per_second": 8000.0},
}


def started(tmp_path: Path) -> tuple[Display, RunDirectory]:
    """A display that was told of a run."""
    run = RunDirectory.create(tmp_path / "run", {})
    display = Display()
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


def test_what_is_piped_is_lines_that_say_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flatclr.training.display.LINE_S", 0.0)
    display, _ = started(tmp_path)
    display(Progressed(0, "evaluation, features of photos", 512, 1000))
    display(Forecast(1, 90.0, "about 90 s to go, by the pace of 1 step"))
    display(Logged(2, epoch=0.1, metrics={"loss": 1.5, **LOGGED}))
    said = capsys.readouterr().out

    assert said.splitlines()[1:] == [
        "evaluation, features of photos 512/1,000",
        "about 90 s to go, by the pace of 1 step.",
        "training 2/2: loss 1.500  MI 1.00/2.00  ESS 0.20  beta 3.0  1,000 images/s, 8,000 views/s",
    ]


def test_a_forecast_of_the_first_line_is_not_said_again_and_its_advice_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display = Display()
    display(Started(0, 840, tmp_path, nn.Identity(), "40 images, CPU: about 25 min", seconds=1500.0))
    display(Forecast(0, 1500.0, "about 25 min to go, by the pace of 3 steps", "for a shorter run fewer --epochs"))

    assert capsys.readouterr().out.splitlines() == [
        "40 images, CPU: about 25 min",
        f"run directory: {tmp_path}",
        "for a shorter run fewer --epochs.",
    ]


def test_the_bar_keeps_its_numbers_on_a_narrow_terminal() -> None:
    console = Console(force_terminal=True, width=60, record=True, file=io.StringIO())
    display = Display(console=console)
    display(Started(step=0, total_steps=20_000, run=None, network=nn.Identity(), summary="what it is"))
    display(Logged(12_345, epoch=0.1, metrics={"loss": 1.5, **LOGGED}))
    assert isinstance(display.shown, Bar)
    shown = console.render_lines(display.shown.progress.get_renderable())
    display.shown.stop()
    text = "\n".join("".join(part.text for part in line) for line in shown)

    assert "12345/20000" in text
    assert "8,000 views/s" in " ".join(text.split())
    assert "…" not in text


def test_a_brief_display_says_only_where_the_encoder_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(brief=True)
    display(Started(step=0, total_steps=2, run=tmp_path, network=nn.Identity(), summary="what it is"))
    display(Logged(2, epoch=0.1, metrics={"loss": 1.5, **LOGGED}))
    display(Finished(step=2, encoders=(tmp_path / "encoder.safetensors",), metrics={}))

    assert capsys.readouterr().out == f"encoder: {tmp_path / 'encoder.safetensors'}\n"


def test_the_command_says_its_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"flatclr {flatclr.__version__}\n")
