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
@pytest.mark.parametrize("views", [[], ["--views"]], ids=["two views", "views of several sizes"])
def test_two_processes_with_micro_batches_follow_the_trajectory_of_one(tmp_path: Path, views: list[str]) -> None:
    one = train(config(tmp_path / "one", 6, **(SEVERAL_SIZES if views else {}))).path
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    worker = ["-m", "tests.support.training_worker", str(tmp_path / "two"), "6", "--micro-batch", *views]
    done = subprocess.run([*command, *worker], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert (tmp_path / "two" / "encoder.safetensors").exists(), done.stderr[-3000:]
    got, want = (load_checkpoint(p / "checkpoint").state["train_step"]["network"] for p in (tmp_path / "two", one))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
