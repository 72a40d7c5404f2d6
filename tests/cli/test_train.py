"""`flatclr train`: trains and resumes, one line for bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flatclr.cli import train as cli_train
from flatclr.cli.main import app, main
from flatclr.training.config import TrainConfig
from flatclr.training.errors import TrainingStoppedError


def run_cli(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "flatclr", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def test_the_command_line_trains_and_resumes(tmp_path: Path) -> None:
    small = ["--batch-size", "8", "--set", "encoder_options={width: 8}", "--set", "eval_samples=50", "--device", "cpu"]
    done = run_cli("train", "--steps", "3", "--out", "run", "--json", *small, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line)["kind"] for line in done.stdout.splitlines()]
    events = [kind for kind in events if kind != "progress"]  # which slow machines hear of
    assert events[0] == "start"
    assert events[-3:] == ["end", "diagnosis", "report"]
    assert (tmp_path / "run" / "encoder.safetensors").exists()
    again = run_cli("train", "--resume", "run", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "encoder:" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--objective", "flatnc"), "did you mean 'flatnce'"),
        (("--data", "no-such-folder"), "data must be an existing path"),
        (("--resume", "no-such-run"), "a run directory must hold config.yaml"),
        (("--recipe", "cifar"), "recipe must be one of"),
        (("--set", "nonsense"), "--set must be NAME=VALUE"),
        (("--temperature", "-1"), "temperature must be a finite number > 0"),
        (("--temperature", "0.1", "--ess-target", "0.2"), "only one of --temperature and --ess-target"),
        (("--objective", "siglip", "--ess-target", "0.2"), "ess_target must be None for siglip, got 0.2"),
        (("--recipe", "small", "--objective", "vicreg", "--ess-target", "0.25"), "ess_target must be None for vicreg"),
        (("--objective", "supervised", "--set", "ess_target=0.2"), "ess_target must be None for supervised, got 0.2"),
        (("--batch-size", "2"), "target must be > 1/2 = 0.5"),
        (("--ess-target", "0:0.5,1:0.01", "--batch-size", "8"), "target must be > 1/14"),
        (("--device", "gpu"), "device must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 'gpu'"),
        (("--set", "views={"), "--set views must have a YAML value"),
        (("--set", "views=3"), "views must be named values, got 3"),
        (("--views", "1"), "views_per_image must be a whole number >= 2, got 1"),
        (("--view-size", "40"), "views must be at most as large as the images, 28 pixels, got 40"),
        (("--set", "view_sizes=[[2, 24], 6]"), "view_sizes must be [[views, pixels], ...], got [[2, 24], 6]"),
        (("--view-size", "16", "--set", "view_sizes=[[2, 24]]"), "only one of view_size and view_sizes must be given"),
        (("--out", "/dev/null/x"), "/dev/null/x must stand in a folder, got the file /dev/null"),
    ],
)
def test_bad_input_on_the_command_line_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["flatclr", "train", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_bad_input_ends_the_process_with_exit_code_2(tmp_path: Path) -> None:
    done = run_cli("train", "--objective", "flatnc", cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_command_line_says_how_many_views_of_which_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TrainConfig] = []

    def stop(given: TrainConfig, **_: Any) -> None:
        asked.append(given)
        raise TrainingStoppedError("seen enough.")

    monkeypatch.setattr(cli_train, "train", stop)
    CliRunner().invoke(app, ["train", "--views", "8", "--view-size", "16"])
    CliRunner().invoke(app, ["train", "--set", "view_sizes=[[2, 24], [6, 16]]"])
    CliRunner().invoke(app, ["train", "--views-per-image", "4", "--set", "size_schedule=[[0, 16], [5, 24]]"])
    assert [(given.views_per_image, given.view_size) for given in asked] == [(8, 16), (8, None), (4, None)]
    assert asked[1].view_sizes == [[2, 24], [6, 16]]
    assert asked[2].size_schedule == [[0, 16], [5, 24]]


@pytest.mark.parametrize(
    ("flags", "graph"), [([], None), (["--graph"], True), (["--no-graph"], False)], ids=["", "graph", "no-graph"]
)
def test_the_command_line_asks_for_a_graph_or_for_none(
    flags: list[str], graph: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[TrainConfig] = []

    def stop(given: TrainConfig, **_: Any) -> None:
        asked.append(given)
        raise TrainingStoppedError("seen enough.")

    monkeypatch.setattr(cli_train, "train", stop)
    CliRunner().invoke(app, ["train", *flags])
    assert [given.graph for given in asked] == [graph]


def test_the_command_line_makes_a_run_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def stop(given: TrainConfig, **options: Any) -> None:
        asked.append({"epochs": given.epochs, "resume": options["resume"], "longer": options["extend_epochs"]})
        raise TrainingStoppedError("seen enough.")

    monkeypatch.setattr(cli_train, "train", stop)
    CliRunner().invoke(app, ["train", "--resume", "run", "--epochs", "+2.5"])
    CliRunner().invoke(app, ["train", "--epochs", "3"])
    assert asked == [
        {"epochs": 10.0, "resume": "run", "longer": 2.5},
        {"epochs": 3.0, "resume": None, "longer": None},
    ]
    for flags, message in (
        (["--epochs", "+5"], "--epochs +5 must go with --resume, got none"),
        (["--epochs", "many"], "--epochs must be a number, got 'many'"),
        (["--resume", "run", "--epochs", "5"], "--resume must stand alone"),
    ):
        assert message in str(CliRunner().invoke(app, ["train", *flags]).exception)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--steps", "5"], "--steps"),
        (["--epochs", "5"], "--epochs"),
        (["--views", "halves"], "--views-per-image"),
        (["--batch-size", "8", "--set", "queue=64"], "--batch-size, --set queue"),
    ],
)
def test_a_resumed_run_refuses_other_settings_and_says_which_may_be_given(flags: list[str], named: str) -> None:
    said = str(CliRunner().invoke(app, ["train", "--resume", "run", *flags]).exception)
    assert said.startswith(f"--resume must stand alone but for --epochs +N and --max-bad-images, got {named} too;")
