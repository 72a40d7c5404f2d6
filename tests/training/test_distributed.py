"""Two processes follow the trajectory of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flatclr.checkpoint import load_checkpoint
from flatclr.training.errors import TrainingInterruptedError
from flatclr.training.events import Event, Logged
from flatclr.training.stopping import StopRequest
from flatclr.training.trainer import train
from tests.support.shards import numbered_shards
from tests.support.training import ROOT, assert_same
from tests.support.training_worker import BY_SHARDS, SEVERAL_SIZES, config, network_of

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with the runs of two processes, `two` and, by micro-batches, `micro`, `sogclr`, `by-shards` and `views`, and what they printed."""
    folder = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    others = ["--micro-batch-too", "--sogclr-too", "--shards-too", "--views-too"]
    numbered_shards(folder / "shards", 4, 24)
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


def test_streamed_shards_follow_the_trajectory_of_one_process_also_after_a_break_inside_a_shard(
    two_processes: tuple[Path, str], tmp_path: Path
) -> None:
    folder, stop = two_processes[0], StopRequest()
    settings = config(tmp_path / "one", 14, data=folder / "shards", log_every=1, **BY_SHARDS)

    def listen(event: Event) -> None:
        if isinstance(event, Logged) and event.step == 5:  # 40 of 86 images
            stop.ask("a listener")

    with pytest.raises(TrainingInterruptedError):
        train(settings, on_event=[listen], stop=stop)
    one = train(settings, auto_resume=True).path
    whole = train(settings.changed(out=str(tmp_path / "whole"))).path
    assert_same(network_of(one), network_of(whole))
    torch.testing.assert_close(network_of(folder / "by-shards"), network_of(one), rtol=1e-5, atol=1e-5)


def test_views_of_several_sizes_follow_the_trajectory_of_one_process(
    two_processes: tuple[Path, str], tmp_path: Path
) -> None:
    one = train(config(tmp_path / "one", 6, **SEVERAL_SIZES)).path
    torch.testing.assert_close(network_of(two_processes[0] / "views"), network_of(one), rtol=1e-5, atol=1e-5)
