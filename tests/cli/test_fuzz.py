"""Whatever a command is given: exit code 0, or one line and exit code 1 or 2; never a traceback, never a hang."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatclr.cli.main import app, main
from flatclr.training.trainer import train
from tests.support.training_worker import config

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SMALL = {
    "train": [
        *("--steps", "1", "--batch-size", "4", "--data", "images.npy", "--device", "cpu", "--set", "eval_start=false"),
        *("--set", "eval_samples=8", "--set", "encoder_options={width: 4}"),
    ],
    "eval": ["--protocol", "knn", "--data", "labelled.npz", "--device", "cpu", "--no-random-row"],
    "mi": ["--method", "gaussian", "--x", "0", "--y", "1"],
    "export": [],
    "report": [],
    "doctor": [],
    "watch": [],
    "sweep": [
        *("--data", "images.npy", "--device", "cpu", "--set", "eval_start=false", "--set", "eval_samples=8"),
        *("--set", "encoder_options={width: 4}", "--set", "batch_size=4", "--out", "w"),
    ],
    "settings": [],
    "negatives": ["--most", "4"],
    "study": ["--quick", "--out", "s"],
    "check-loss": ["--ranks", "1"],
    "finetune": ["--data", "labelled.npz", "--device", "cpu", "--epochs", "1", "--out", "f"],
    "embed": ["--data", "images.npy", "--device", "cpu", "--out", "e.npz"],
    "neighbours": ["--data", "images.npy", "--device", "cpu", "--out", "n.png"],
}
SUBJECTS = {
    "train": [[]],
    "eval": [["run"], ["gone"], [""], ["images.npy"], ["run/encoder.json"], ["odd.json"]],
    "mi": [["table.csv"], ["rows.npy"], ["labelled.npz"], ["zero.npy"], ["gone.csv"], ["odd.json"], [""]],
    "export": [["run"], ["gone"], ["odd.json"], ["run/config.yaml"]],
    "report": [["run"], ["gone"], ["."], ["images.npy"], ["run", "run"], ["run", "gone"]],
    "doctor": [["run"], ["gone"], ["."], [], ["--metrics", "table.csv"], ["--embeddings", "rows.npy"], [""]],
    "watch": [["run"], ["gone"], ["."], ["images.npy"]],
    "sweep": [["--set", "steps=1"], ["--set", "steps=1,2"], ["--set", "steps"], ["--set", "steps=1,1"]],
    "check-loss": [["flatclr:InfoNCE"], ["flatclr:gone"], ["gone"], [""]],
    "finetune": [["run"], ["gone"], ["images.npy"]],
    "embed": [["run"], ["gone"], ["images.npy"], ["odd.json"]],
    "neighbours": [["run", "--outliers"], ["run", "gone.png"], ["run"], ["gone", "--duplicates"]],
    "settings": [[], ["output"], ["gone"], [""]],
    "negatives": [
        ["--classes", "3"],
        *(["--prior", p] for p in ("0.7,0.2,0.1", "1,1", "1e-9,1", "1,0", "1,-1", "1,nan", "1", "1e308,1e308", "1,,1")),
    ],
    "study": [["list"], ["cost"], ["gone"], [""]],
}
LONG = {"--epochs", "--workers", "--benchmark", "--rows", "--help", "--draws", "--transfer-data", "--wandb", "--folds"}
ODD = [
    "",
    "x",
    "-1",
    "0",
    "3",
    "0.5",
    "nan",
    "1e400",
    "9" * 30,
    "[",
    "{a: 1}",
    "null",
    "odd.json/x",
    "run",
    "é\udcff",
    "a=b",
]
SET = [
    "queue",
    "embedding",
    "views",
    "device",
    "seed",
    "objective",
    "encoder",
    "momentum",
    "pairing",
    "lr_scaling",
    "x",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a bit of everything, which is where the commands are given."""
    folder, here = tmp_path_factory.mktemp("place"), os.getcwd()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 8, 8), dtype=np.uint8)
    np.save(folder / "images.npy", images)
    np.savez(folder / "labelled.npz", images=images, labels=np.arange(30) % 2)
    np.save(folder / "rows.npy", rng.normal(size=(60, 2)))
    np.savetxt(folder / "table.csv", rng.normal(size=(60, 2)), delimiter=",", header="0,1", comments="")
    (folder / "zero.npy").touch()
    (folder / "odd.json").write_text("[")
    train(config(folder / "run", 1, data=folder / "images.npy", eval_samples=8))
    os.chdir(folder)
    yield folder
    os.chdir(here)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(sorted(COMMANDS)))
    line = [name, *draw(st.sampled_from(SUBJECTS[name])), *SMALL[name]]
    flags = [p for p in COMMANDS[name].params if p.param_type_name == "option" and not LONG & set(p.opts)]
    for _ in range(draw(st.integers(0, 3))):
        option = draw(st.sampled_from(flags))
        if option.opts[0] == "--set":
            line += ["--set", f"{draw(st.sampled_from(SET))}={draw(st.sampled_from(ODD))}"]
        elif option.is_flag:
            line.append(option.opts[0])
        else:
            line += [option.opts[0], draw(st.sampled_from(ODD))]
    return line


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("examples", [30, pytest.param(600, marks=pytest.mark.slow)], ids=["quick", "slow"])
def test_a_command_line_has_an_outcome(examples: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatclr.cli.train._write_page", lambda *_: None)  # which takes longer than all else
    monkeypatch.setattr("flatclr.report.serving.Server.serve_forever", lambda *_: None)
    monkeypatch.setattr("flatclr.cli.train.watched_beside", lambda _: "")
    monkeypatch.setattr("flatclr.cli.report.refresh_pictures", lambda *_, **__: "")
    calm = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]

    @settings(max_examples=examples, deadline=None, suppress_health_check=calm)
    @given(command_lines())
    def run(line: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", ["flatclr", *line])
        out, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said), pytest.raises(SystemExit) as stopped:
            main()
        lines = [text for text in said.getvalue().splitlines() if text.strip()]
        assert stopped.value.code in (0, 1, 2)
        assert "Traceback" not in said.getvalue()
        unsettled = line[0] == "negatives" and stopped.value.code == 1 and out.getvalue()  # its answer says so
        if stopped.value.code and not unsettled:
            assert len(lines) == 1, lines
            assert lines[0].startswith("flatclr: ")

    run()
