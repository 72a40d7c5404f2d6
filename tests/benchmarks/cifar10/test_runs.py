"""Processes of the CIFAR-10 benchmark: trained once, resumed, stopped at the deadline, under one lock."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
import pytest
import yaml

from benchmarks.cifar10 import __main__ as command
from benchmarks.cifar10 import kept, runs, summary
from benchmarks.cifar10.plan import TINY, planned
from flatclr.runs import machine
from tests.support.cifar10 import TINY_GRID, Started, later, launch_here, leave_run, site


def test_a_run_is_trained_and_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(TINY_GRID[0], settings={**TINY_GRID[0].settings, "steps": 2}, protocols=("knn",))
    monkeypatch.setattr(runs, "launch", launch_here)

    first = runs.execute([run], site(tmp_path), deadline=later(), say=lambda _: None)
    second = runs.execute([run], site(tmp_path), deadline=later(), say=lambda _: None)

    found = kept.kept_runs(tmp_path / "results")[run.name]
    assert first.by_run == {run.name: "done"}
    assert second.by_run == {run.name: "kept"}
    assert [process["does"] for process in found.processes] == ["train", "eval"]
    for protocol in run.protocols:
        for score in (found.score(protocol), found.score(protocol, name="top1_k10"), found.untrained(protocol)):
            assert score is not None
            assert 0 <= score.low <= score.value <= score.high <= 1


def test_a_process_trains_on_images_that_leave_some_out(tmp_path: Path) -> None:
    run = planned(["lr"], TINY, {})[0]

    outcome = runs.execute([run], site(tmp_path), deadline=later(), say=lambda _: None)

    found = kept.kept_runs(tmp_path / "results")[run.name]
    assert outcome.by_run == {run.name: "done"}
    assert found.config.data == "held-out.npz"
    assert found.processes[0]["commit"] == machine()["commit"]
    assert 0 <= kept.held_out_knn(found) <= 1
    (end,) = summary.times(found)
    assert 0 < end.training < end.wall
    with np.load(tmp_path / "runs" / "held-out.npz") as images:
        counts = {name: len(images[name]) for name in ("train_images", "test_images")}
    assert counts == {"train_images": TINY.images - TINY.held_out, "test_images": TINY.held_out}


def test_one_failure_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = TINY_GRID[:2]

    def launch(arguments: list[str], stderr: IO[str], environment: Mapping[str, str]) -> Started:
        if any(bad.name in argument for argument in arguments):
            stderr.write("flatclr: a batch must fit\n")
            return Started(1, [])
        folder = tmp_path / "runs" / good.name
        (folder / "encoder.safetensors").touch()
        (folder / "evaluation").mkdir(exist_ok=True)
        rows = [{"protocol": name} for name in good.protocols]
        (folder / "evaluation" / "results.json").write_text(json.dumps({"rows": rows}))
        (folder / "config.yaml").write_text(yaml.safe_dump(good.config(data="tiny.npz").to_dict()))
        for name in ("environment.json", "metrics.jsonl"):
            (folder / name).write_text("{}")
        return Started(0, [])

    monkeypatch.setattr(runs, "launch", launch)
    outcome = runs.execute([bad, good], site(tmp_path), deadline=later(), parallel=2, say=lambda _: None)

    assert outcome.by_run == {bad.name: "failed: flatclr: a batch must fit (exit code 1)", good.name: "done"}
    assert outcome.failed == [bad.name]


def test_at_the_deadline_processes_are_told_to_stop_and_nothing_new_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Started] = []

    def launch(*_: Any) -> Started:
        started.append(Started(130, ['{"kind": "start", "step": 0}\n'], told=True))
        return started[-1]

    def clock() -> float:
        """An hour passes once both processes are there, however slow the machine."""
        return time.monotonic() + (3600 if len(started) == 2 else 0)

    monkeypatch.setattr(runs, "launch", launch)
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(runs, "REPORT_SECONDS", 0.05)
    outcome = runs.execute(TINY_GRID[:3], site(tmp_path), deadline=later(), parallel=2, say=lambda _: None)

    assert len(started) == 2
    assert all(process.signalled.is_set() for process in started)
    assert list(outcome.by_run.values()) == ["stopped", "stopped", "not started"]
    assert not outcome.complete
    assert not outcome.failed


def test_whole_runs_only_are_not_started_when_they_cannot_end_in_time(tmp_path: Path) -> None:
    long = replace(TINY_GRID[0], gpu_seconds=10_000.0)

    outcome = runs.execute([long], site(tmp_path), deadline=later(), whole=True, say=lambda _: None)

    assert outcome.by_run == {long.name: "not started"}


def test_a_run_that_was_begun_is_resumed_unless_the_plan_has_changed(tmp_path: Path) -> None:
    run, at = TINY_GRID[0], site(tmp_path)
    folder = tmp_path / "runs" / run.name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(run.config(out=str(folder)).to_dict()))

    assert runs.train_arguments(run, at) == ["train", "--resume", str(folder)]
    changed = replace(run, settings={**run.settings, "learning_rate": 0.5})
    with pytest.raises(ValueError, match=r"learning_rate 0\.5 \(was 0\.03\); remove it"):
        runs.train_arguments(changed, at)


def test_kept_runs_of_another_plan_are_not_taken_for_this_one(tmp_path: Path) -> None:
    run = replace(TINY_GRID[0], settings={**TINY_GRID[0].settings, "learning_rate": 0.5})
    leave_run(tmp_path / "results", TINY_GRID[0], 0.7)

    outcome = runs.execute([run], site(tmp_path), deadline=later(), say=lambda _: None)

    assert outcome.by_run[run.name].startswith("failed: planned with learning_rate 0.5 (was 0.03); remove")


def test_a_second_command_is_refused_while_the_first_has_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--plan", "tiny", "--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]

    with runs.alone_in(tmp_path / "runs"):
        assert command.main(["run", *places, "--stage", "lr"]) == 2

    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert f"{tmp_path / 'runs'} must be used by one command at a time, got a second" in told[0]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["lock"]


def test_the_lock_ends_with_the_last_process_that_was_started_under_it(tmp_path: Path) -> None:
    with runs.alone_in(tmp_path):
        left_behind = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with pytest.raises(ValueError, match="one command at a time"), runs.alone_in(tmp_path):
            pass
    finally:
        left_behind.kill()
        left_behind.wait()
    with runs.alone_in(tmp_path):
        pass


def test_a_process_notes_whether_it_shares_the_gpu_by_the_service_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))

    assert not runs.has_multi_process_service()
    (tmp_path / "control").touch()
    assert runs.has_multi_process_service()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--stage", "grid"], "all runs of the stage lr must be in"),
        (["run", "--stage", "lr", "--data", "nowhere"], "cifar10 must stand in a data folder"),
        (["run", "--stage", "lr", "--minutes", "0"], "--minutes must be a finite number > 0"),
        (["run", "--stage", "lr", "--only", "lr-b32"], "--only must be one of"),
        (["run", "--stage", "lr", "--parallel", "0"], "parallel must be a whole number >= 1"),
    ],
)
def test_bad_input_gets_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLATCLR_DATA", raising=False)
    places = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]

    assert command.main([*arguments, *places]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
