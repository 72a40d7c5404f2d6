"""A run that was stopped or killed ends with the weights of one never stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flatclr import checkpoint
from flatclr.checkpoint import load_checkpoint
from flatclr.runs import RunDirectory
from flatclr.training.build_objective import build_objective
from flatclr.training.config import TrainConfig
from flatclr.training.events import Event, Logged, Warned
from flatclr.training.trainer import train
from tests.support.training import ROOT, assert_same, paired_npz, wait_for
from tests.support.training_worker import config, network_of


def worker(out: Path, steps: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.training_worker", str(out), str(steps), *more]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 steps without a break."""
    return train(config(tmp_path_factory.mktemp("short") / "run", 12)).path


@pytest.mark.parametrize("stop", [2, 9])
def test_a_resumed_run_ends_with_the_weights_of_one_never_stopped(stop: int, short_run: Path, tmp_path: Path) -> None:
    class StopHereError(Exception):
        pass

    def stop_there(event: Event) -> None:
        if isinstance(event, Logged) and event.step == stop:
            raise StopHereError

    with pytest.raises(StopHereError):
        train(config(tmp_path / "run", 12, log_every=1, checkpoint_every=1), on_event=[stop_there])
    train(TrainConfig(), resume=tmp_path / "run")
    assert_same(network_of(tmp_path / "run"), network_of(short_run))
    steps = [row["step"] for row in RunDirectory.open(tmp_path / "run").metrics() if row["kind"] == "log"]
    assert steps == list(range(1, 13))  # nothing twice, nothing missing


@pytest.mark.parametrize("name", ["sogclr", "isogclr"])
def test_a_resumed_run_goes_on_with_the_numbers_of_every_sample(name: str, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 12, 12), dtype=np.uint8)  # every sample comes again
    np.save(tmp_path / "images.npy", images)
    settings = {"objective": name, "data": str(tmp_path / "images.npy")}
    whole = train(config(tmp_path / "whole", 12, **settings)).path
    run = train(config(tmp_path / "run", 12, **settings)).path
    (run / "checkpoint" / "step-000000012.pt").unlink()
    train(TrainConfig(), resume=run)
    for part in ("network", "objective"):
        got, want = (load_checkpoint(p / "checkpoint").state["train_step"][part] for p in (run, whole))
        assert_same(got, want)
    assert want["state.log_average"].isfinite().all()
    assert len(want["state.log_average"]) == 18  # two are held out


def test_a_run_killed_before_its_first_checkpoint_starts_again_from_its_seed(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", 8, eval_start=True)).path
    whole, rows = network_of(run), RunDirectory.open(run).metrics()
    for file in (run / "checkpoint").iterdir():
        file.unlink()
    train(TrainConfig(), resume=run)
    assert_same(network_of(run), whole)
    again = RunDirectory.open(run).metrics()
    assert [(row["kind"], row["step"]) for row in again] == [(row["kind"], row["step"]) for row in rows]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 steps without a break."""
    return train(config(tmp_path_factory.mktemp("whole") / "run", 120)).path


@pytest.mark.parametrize(
    "seen", [12, pytest.param(4, marks=pytest.mark.slow), pytest.param(40, marks=pytest.mark.slow)]
)
def test_a_killed_run_resumes_to_the_same_weights(seen: int, whole_run: Path, tmp_path: Path) -> None:
    """Killed at no particular moment after a checkpoint was seen; no clock decides how far it came."""
    run = tmp_path / "run"
    process = worker(run, 120)
    wait_for(lambda: any(int(path.stem[5:]) >= seen for path in run.glob("checkpoint/step-*.pt")), process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert checkpoint.load_checkpoint(run / "checkpoint").step < 120
    resumed = worker(run, 120, "--resume")
    _, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors
    assert_same(network_of(run), network_of(whole_run))


@pytest.mark.parametrize("renamed", [0, 1])
def test_a_kill_during_a_checkpoint_write_costs_only_that_checkpoint(
    renamed: int, short_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two files of a checkpoint take their names one after the other; stop before the first or the second does."""

    class KilledError(BaseException):
        pass

    names: list[str] = []
    rename = os.replace

    def killed(source: Path, target: Path) -> None:
        if "000000008" in Path(target).name:
            names.append(Path(target).name)
            if len(names) > renamed:
                raise KilledError
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KilledError):
            train(config(tmp_path / "run", 12))
    assert checkpoint.load_checkpoint(tmp_path / "run" / "checkpoint").step == 4
    train(TrainConfig(), resume=tmp_path / "run")
    assert_same(network_of(tmp_path / "run"), network_of(short_run))


def test_resuming_with_other_threads_says_that_weights_may_differ(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", 4)).path
    environment = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps({**environment, "threads": 64}))
    heard: list[Event] = []
    train(TrainConfig(), resume=run, on_event=[heard.append])
    said = [event.message for event in heard if isinstance(event, Warned)]
    assert any("weights may differ" in message and "threads was 64" in message for message in said)


def test_resuming_on_other_data_is_refused(tmp_path: Path) -> None:
    data = paired_npz(tmp_path / "pairs.npz")
    settings = {"data": str(data), "encoder": "mlp", "encoder_options": {"width": 8}}
    run = train(config(tmp_path / "run", 4, **settings)).path
    arrays = dict(np.load(data))
    arrays["x"][0] += 1
    np.savez(data, **arrays)
    with pytest.raises(ValueError, match="the data must be those the run began with"):
        train(TrainConfig(), resume=run)


def test_a_run_on_a_relative_path_is_resumed_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", np.random.default_rng(0).integers(0, 256, (40, 12, 12), dtype=np.uint8))
    run = train(config(Path("run"), 6, data="images.npy")).path.absolute()
    (run / "checkpoint" / "step-000000006.pt").unlink()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert train(TrainConfig(), resume=run).steps == 6
    assert RunDirectory(run).config()["data"] == str(tmp_path / "images.npy")


@pytest.mark.parametrize(("ess_target", "expected"), [(None, 0.2), (0.3, None)])
def test_a_temperature_among_the_options_of_an_earlier_run_is_understood(
    ess_target: float | None, expected: float | None
) -> None:
    settings = {"objective_options": {"temperature": 0.2, "value": "paper"}, "ess_target": ess_target}
    read = TrainConfig.from_dict(settings)
    assert (read.temperature, dict(read.objective_options)) == (expected, {"value": "paper"})
    build_objective(read)
