"""A sweep trains at every point of its grid, once."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatclr.checkpoint import load_checkpoint
from flatclr.cli.main import main
from flatclr.cli.sweep import _grid
from flatclr.runs import RunDirectory
from flatclr.studies.entry import Progress
from flatclr.sweep import plan, sweep
from flatclr.training.config import TrainConfig
from flatclr.training.errors import DivergedError, TrainingStoppedError
from flatclr.training.stopping import StopRequest
from tests.support.training import wait_for

TINY: dict[str, Any] = {
    "encoder": "cnn", "encoder_options": {"width": 4}, "embedding": 8, "steps": 2, "batch_size": 4, "log_every": 1,
    "eval_start": False, "eval_samples": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "images.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (24, 8, 8), dtype=np.uint8))
    return path


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them wait for each other where the machine is busy."""
    monkeypatch.setattr("flatclr.sweep.threads_for", lambda jobs: 1)


def test_a_sweep_makes_every_combination_and_none_of_them_twice(images: Path, tmp_path: Path) -> None:
    heard: list[Progress] = []
    base = TrainConfig(data=str(images), **TINY)
    grid = {"batch_size": [4, 8]}
    found = sweep(base, grid, tmp_path, device="cpu", progress=heard.append)
    assert found.complete
    asked = {(run["batch_size"], run["seed"]) for run in (RunDirectory.open(path).config() for path in found.runs)}
    assert asked == {(4, 0), (8, 0)}
    assert [progress.done for progress in heard] == [0, 1, 2]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    again = sweep(base, {"batch_size": [4, 8, 12]}, tmp_path, device="cpu")
    assert again.finished == again.planned == 3
    assert {path: path.stat().st_mtime_ns for path in written} == written
    with pytest.raises(ValueError, match="must hold the planned run"):
        sweep(base.changed(steps=3), grid, tmp_path, device="cpu")


def test_a_run_that_was_stopped_goes_on(images: Path, tmp_path: Path) -> None:
    base = TrainConfig(data=str(images), **TINY)
    late = sweep(base, {"seed": [0, 1]}, tmp_path, device="cpu", minutes=1e-9)
    assert not late.complete
    assert late.failed == {}
    assert sweep(base, {"seed": [0, 1]}, tmp_path, device="cpu").complete


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_of_a_sweep_that_is_asked_to_stop_save_where_they_are(jobs: int, images: Path, tmp_path: Path) -> None:
    base = TrainConfig(data=str(images), **{**TINY, "steps": 1_000_000, "checkpoint_every": 1_000_000})
    stop, folders = StopRequest(), [tmp_path / f"run-s{seed}" for seed in range(jobs)]

    def ask_when_all_are_at_work() -> None:
        wait_for(lambda: all(_steps(folder) >= 3 for folder in folders))
        stop.ask("a test")

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_when_all_are_at_work)
        found = sweep(base, {"seed": list(range(3))}, tmp_path, device="cpu", jobs=jobs, stop=stop)
        asking.result()
    assert (found.finished, found.failed, len(found.runs)) == (0, {}, jobs)
    for folder in folders:
        assert load_checkpoint(RunDirectory.open(folder).checkpoints).step >= 3


@pytest.mark.parametrize("diverges", [True, False], ids=["not finite", "no memory"])
def test_only_a_loss_that_is_not_finite_ends_a_run_of_a_sweep_for_good(
    diverges: bool, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, grid = TrainConfig(data=str(images), **TINY), {"seed": [0]}

    def stopped(*_: object, **options: object) -> None:
        raise (DivergedError if diverges else TrainingStoppedError)("it stopped")

    with monkeypatch.context() as patched:
        patched.setattr("flatclr.sweep.train", stopped)
        found = sweep(base, grid, tmp_path, device="cpu")
    assert (found.complete, found.failed) == ((True, {}) if diverges else (False, {"run-s0": "it stopped"}))
    assert sweep(base, grid, tmp_path, device="cpu").complete
    assert (len(list(tmp_path.rglob("metrics.jsonl"))) == 0) == diverges


def _steps(folder: Path) -> int:
    return len(RunDirectory.open(folder).metrics()) if RunDirectory.begun_in(folder) else 0


def test_settings_that_cannot_be_are_refused_before_any_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_size must be a whole number >= 1, got 0"):
        sweep(TrainConfig(), {"batch_size": [8, 0]}, tmp_path / "out", device="cpu")
    with pytest.raises(ValueError, match="every run of a sweep must be another"):
        plan(TrainConfig(), {"batch_size": [8, 8]})
    with pytest.raises(ValueError, match="out must be left to the sweep"):
        plan(TrainConfig(), {"out": ["a", "b"]})
    assert not (tmp_path / "out").exists()


def test_a_batch_that_the_data_cannot_fill_is_refused_before_any_run(images: Path, tmp_path: Path) -> None:
    base, home = TrainConfig(data=str(images), **TINY), tmp_path / "out"
    with pytest.raises(ValueError, match=r"batch_size must be .* <= \d+, got 1000; .*say --batch-size"):
        sweep(base, {"batch_size": [8, 1000]}, home, device="cpu")
    with pytest.raises(FileNotFoundError):
        sweep(base.changed(data=str(tmp_path / "gone")), {"seed": [0]}, home, device="cpu")
    assert not home.exists()


def test_failed_runs_are_told_with_the_reason_and_no_promise(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ValueError("this must be that, got other; change it.")

    monkeypatch.setattr("flatclr.sweep.train", refused)
    grid = ["--set", "seed=0,1", "--data", images, "--set", "batch_size=4", "--device", "cpu", "--out", tmp_path]
    monkeypatch.setattr(sys, "argv", ["flatclr", "sweep", "-q", *map(str, grid)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "flatclr: 2 of 2 runs failed, the first, run-s0: this must be that, got other; change it; once that is set "
        "right, the same command makes the rest."
    )


def test_values_are_parted_at_commas_outside_of_brackets() -> None:
    assert _grid(["temperature=0.1,0.5", "views={a: [1, 2]},{}", "size-schedule=[[0, 16], [1, 24]]"]) == {
        "temperature": [0.1, 0.5],
        "views": [{"a": [1, 2]}, {}],
        "size_schedule": [[[0, 16], [1, 24]]],
    }
    with pytest.raises(ValueError, match="--set seed must be given once"):
        _grid(["seed=0", "seed=1"])


def test_the_command_ends_with_the_table_and_the_page(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [part for name, value in TINY.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    grid = ["--set", "objective=flatnce,infonce", "--data", images, "--device", "cpu", "--out", tmp_path]
    monkeypatch.setattr(sys, "argv", ["flatclr", "sweep", "--json", *map(str, grid), *settings])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    *runs, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert [run["run"] for run in runs] == ["objective-flatnce-s0", "objective-infonce-s0"]
    assert {row["objective"] for row in end["table"]} == {"flatnce", "infonce"}
    assert "Best by pool MI, nats" in Path(end["page"]).read_text()
