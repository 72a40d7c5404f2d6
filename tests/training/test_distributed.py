"""Two processes follow the trajectory of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flatclr.checkpoint import load_checkpoint
from flatclr.training.trainer import train
from tests.support.training import ROOT
from tests.support.training_worker import SEVERAL_SIZES, config, network_of

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with the runs of two processes, `two` and, by micro-batches, `micro`, `sogclr` and `views`, and what they printed."""
    folder = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    others = ["--micro-batch-too", "--sogclr-too", "--views-too"]
    worker = ["-m", "tests.support.training_worker", str(folder / "two"), "10", *others]
    done = subprocess.run([*command, *worker], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert (folder / "views" / "encoder.safetensors").exists(), done.stderr[-3000:]
    return folder, done.stdout


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return network_of(train(config(tmp_path_factory.mktemp("one") / "run", 10)).path)


@pytest.mark.parametrize("name", ["two", "micro"])
def test_two_processes_follow_the_trajectory_of_one(
    name: str, two_processes: tuple[Path, str], one_process: dict[str, torch.Tensor]
) -> None:
    torch.testing.assert_close(network_of(two_processes[0] / name), one_process, rtol=1e-5, atol=1e-5)


def test_every_process_is_told_where_the_run_is(two_processes: tuple[Path, str]) -> None:
    folder, printed = two_processes
    assert printed.split() == [str(folder / "two")] * 2


def test_numbers_of_samples_follow_the_trajectory_of_one_process(
    two_processes: tuple[Path, str], tmp_path: Path
) -> None:
    one = train(config(tmp_path / "one", 6, objective="sogclr")).path
    for part in ("network", "objective"):
        runs = (two_processes[0] / "sogclr", one)
        got, want = (load_checkpoint(run / "checkpoint").state["train_step"][part] for run in runs)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert want["state.log_average"].isfinite().sum() == 48  # six batches of eight


def test_views_of_several_sizes_follow_the_trajectory_of_one_process(
    two_processes: tuple[Path, str], tmp_path: Path
) -> None:
    one = train(config(tmp_path / "one", 6, **SEVERAL_SIZES)).path
    torch.testing.assert_close(network_of(two_processes[0] / "views"), network_of(one), rtol=1e-5, atol=1e-5)
