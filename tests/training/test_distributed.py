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
from tests.support.training_worker import config, network_of


@pytest.mark.distributed
def test_two_processes_follow_the_trajectory_of_one(tmp_path: Path) -> None:
    one = train(config(tmp_path / "one", 10)).path
    out = tmp_path / "two"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "-m", "tests.support.training_worker", str(out), "10"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (out / "encoder.safetensors").exists(), done.stderr[-3000:]
    torch.testing.assert_close(network_of(out), network_of(one), rtol=1e-5, atol=1e-5)


@pytest.mark.distributed
def test_two_processes_with_micro_batches_and_numbers_of_samples_follow_the_trajectory_of_one(tmp_path: Path) -> None:
    one = train(config(tmp_path / "one", 6, objective="sogclr")).path
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    worker = ["-m", "tests.support.training_worker", str(tmp_path / "two"), "6", "--micro-batch", "--sogclr"]
    done = subprocess.run([*command, *worker], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert (tmp_path / "two" / "encoder.safetensors").exists(), done.stderr[-3000:]
    for part in ("network", "objective"):
        got, want = (load_checkpoint(p / "checkpoint").state["train_step"][part] for p in (tmp_path / "two", one))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert want["state.log_average"].isfinite().sum() == 48  # six batches of eight
