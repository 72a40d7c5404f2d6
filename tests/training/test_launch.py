"""How the processes of a run find each other, and what the others do when one is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from flatclr.checkpoint import load_checkpoint
from flatclr.training.config import TrainConfig
from flatclr.training.events import Event, Warned
from flatclr.training.launch import Launched, first_host, launched_by, local_rank
from flatclr.training.stopping import RESUME_ME
from flatclr.training.trainer import train
from tests.support.images import write_pngs
from tests.support.training import ROOT, wait_for
from tests.support.training_worker import config, network_of


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, None),  # srun --pty bash
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "5", "SLURM_PROCID": "0"},
            Launched(1, 2, "a", 5),
        ),
        (
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "30007", "SLURM_JOB_NODELIST": "n[3-4]"},
            Launched(1, 2, "n3", 20_007),
        ),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "MASTER_PORT": "99"}, Launched(1, 2, "localhost", 99)),
    ],
)
def test_what_a_launcher_left_in_the_environment_is_adopted(
    environment: Mapping[str, str], found: Launched | None
) -> None:
    assert launched_by(environment) == found


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "variable RANK must be a whole number, got 'one'"),
        ({"RANK": "0"}, "variable WORLD_SIZE must be a whole number, got ''"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_PORT": "5"}, "rank must be from 0 to 1, got 2"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(environment: Mapping[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        launched_by(environment)


def test_the_first_host_of_slurms_lists() -> None:
    lists = ["n1", "n1,n2", "n[1-3]", "n[01,03],m1", "a-b[7-9]c"]
    assert [first_host(nodes) for nodes in lists] == ["n1", "n1", "n1", "n01", "a-b7"]
    assert local_rank({"SLURM_LOCALID": "3"}) == 3
    assert local_rank({"SLURM_LOCALID": "3", "LOCAL_RANK": "1"}) == 1


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("localhost", 0))
        return int(bound.getsockname()[1])


def ranks(out: Path, steps: int, *more: str, size: int = 2, slurm: bool = False) -> list[subprocess.Popen[str]]:
    """Processes without a launcher, so that nobody but they themselves notice when one is lost."""
    names = ("SLURM_PROCID", "SLURM_NTASKS") if slurm else ("RANK", "WORLD_SIZE")
    port, started = free_port(), []
    for rank in range(size):
        place = {names[0]: str(rank), names[1]: str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        environment = {**os.environ, **place, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "tests.support.training_worker", str(out), str(steps), *more]
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True))
    return started


def wait_for_a_checkpoint(run: Path, processes: list[subprocess.Popen[str]]) -> None:
    wait_for(lambda: list(run.glob("checkpoint/*.pt")), *processes)


@pytest.mark.distributed
def test_a_lost_process_ends_the_other_with_one_line_and_the_run_goes_on_with_fewer(tmp_path: Path) -> None:
    processes = ranks(tmp_path / "run", 100_000)
    wait_for_a_checkpoint(tmp_path / "run", processes)
    processes[1].send_signal(signal.SIGKILL)
    lost_at = time.monotonic()
    _, said = processes[0].communicate(timeout=60)
    assert time.monotonic() - lost_at < 30
    assert processes[0].returncode == 1
    assert said.strip().splitlines()[-1].startswith("flatclr: process 0 of 2 must reach the others, got a lost one")
    assert "Traceback" not in said
    processes[1].communicate(timeout=60)
    step = load_checkpoint(tmp_path / "run" / "checkpoint").step
    assert step > 0


@pytest.mark.slow
@pytest.mark.distributed
def test_a_signal_to_one_process_stops_all_of_them_and_one_goes_on_with_the_batches_of_two(tmp_path: Path) -> None:
    whole = train(config(tmp_path / "whole", 60)).path
    processes = ranks(tmp_path / "run", 60, "--signals", slurm=True)
    wait_for_a_checkpoint(tmp_path / "run", processes)
    processes[1].send_signal(signal.SIGTERM)
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [RESUME_ME] * 2, said
    step = load_checkpoint(tmp_path / "run" / "checkpoint").step
    assert 0 < step < 60
    heard: list[Event] = []
    train(TrainConfig(), resume=tmp_path / "run", on_event=[heard.append])
    torch.testing.assert_close(network_of(tmp_path / "run"), network_of(whole), rtol=1e-4, atol=1e-4)
    (message,) = [event.message for event in heard if isinstance(event, Warned) and "processes" in event.message]
    assert message.startswith(
        "the run goes on on 1 processes instead of 2: the global batch and its order stay the same"
    )
    assert "batch normalisation" not in message


@pytest.mark.slow
@pytest.mark.distributed
def test_no_process_leaves_before_the_first_has_saved(tmp_path: Path) -> None:
    metrics = tmp_path / "run" / "metrics.jsonl"
    processes = ranks(tmp_path / "run", 100_000, "--signals", "--slow-last-save")
    wait_for(metrics.exists, *processes)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    _, said = processes[1].communicate(timeout=60)
    assert list(metrics.parent.glob("checkpoint/*.pt")), said
    processes[0].communicate(timeout=60)
    assert [process.returncode for process in processes] == [RESUME_ME] * 2


@pytest.mark.slow
@pytest.mark.distributed
def test_an_evaluation_does_not_keep_several_processes_waiting(tmp_path: Path) -> None:
    processes = ranks(tmp_path / "run", 24, "--signals", "--slow-evaluation")
    begun = [tmp_path / f"evaluating-{rank}" for rank in range(2)]
    wait_for(lambda: all(mark.exists() for mark in begun), *processes)
    processes[1].send_signal(signal.SIGTERM)  # the other hears of it from this one
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [RESUME_ME] * 2, said
    load_checkpoint(tmp_path / "run" / "checkpoint")
    assert train(TrainConfig(), resume=tmp_path / "run").steps == 24


@pytest.mark.slow
@pytest.mark.distributed
def test_files_that_vanish_stop_all_processes_when_the_first_has_saved(tmp_path: Path) -> None:
    write_pngs(tmp_path / "images", 40)
    metrics = tmp_path / "run" / "metrics.jsonl"
    processes = ranks(tmp_path / "run", 100_000, "--images", "--slow-last-save")
    wait_for(metrics.exists, *processes)
    (tmp_path / "images").rename(tmp_path / "away")
    said = [process.communicate(timeout=90)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1], said
    assert list(metrics.parent.glob("checkpoint/*.pt")), said


def test_batch_normalisation_is_named_where_the_number_of_processes_changes(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", 4, encoder_options={"width": 8})).path
    from flatclr.checkpoint import save_checkpoint
    from flatclr.runs import RunDirectory

    state = load_checkpoint(run / "checkpoint").state
    identity = RunDirectory.open(run).identity()
    save_checkpoint(run / "checkpoint", 5, {**state, "processes": 2}, identity=identity)
    heard: list[Event] = []
    train(TrainConfig(), resume=run, on_event=[heard.append])
    said = [event.message for event in heard if isinstance(event, Warned)]
    assert any("batch normalisation goes by the share of each process, 8 samples instead of 4" in m for m in said)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_process_group_that_is_there_is_adopted_and_left(tmp_path: Path) -> None:
    code = """
import sys, torch.distributed as dist, flatclr
from pathlib import Path
from tests.support.training_worker import config
dist.init_process_group("gloo")
flatclr.train(config(Path(sys.argv[1]), 4))
assert dist.is_initialized() and dist.get_world_size() == 2
dist.destroy_process_group()
"""
    port, processes = free_port(), []
    for rank in range(2):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        environment = {**os.environ, **place, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", code, str(tmp_path / "run")]
        processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=90)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len({(row["kind"], row["step"]) for row in rows}) == len(rows)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("size", [2, 4])
def test_under_torchrun_a_killed_process_ends_all_and_the_same_command_goes_on(size: int, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    worker = [*launcher, "-m", "tests.support.training_worker"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(out: str) -> subprocess.Popen[str]:
        command = [*worker, str(tmp_path / out), "200", "--auto-resume", "--pids", "--calm"]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)

    launched = start("run")
    wait_for_a_checkpoint(tmp_path / "run", [launched])
    os.kill(int((tmp_path / f"pid-{size - 1}").read_text()), signal.SIGKILL)
    killed = time.monotonic()
    launched.communicate(timeout=60)
    assert launched.returncode != 0
    assert time.monotonic() - killed < 30
    for out in ("run", "whole"):
        again = start(out)
        _, said = again.communicate(timeout=120)
        assert again.returncode == 0, said[-3000:]
    torch.testing.assert_close(network_of(tmp_path / "run"), network_of(tmp_path / "whole"))
