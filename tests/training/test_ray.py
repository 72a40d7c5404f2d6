"""A real Ray cluster of two workers on this machine trains as one process does, also when a worker is lost."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import flatclr
from flatclr.runs import RunDirectory
from flatclr.training.events import Event, Logged
from tests.support.training_worker import config, network_of

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'flatclr[ray]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.distributed,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture
def cluster() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # sockets need short paths
        ray.init(
            num_cpus=3,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}},
        )
        yield
        ray.shutdown()


def train_loop(settings: dict[str, Any]) -> None:
    """What docs/clusters.md shows, and a first process that is killed the first time it comes to step 5."""
    torch.set_num_threads(1)
    once = Path(settings.pop("once"))
    assert dist.get_world_size() == 2

    def die(event: Event) -> None:
        if isinstance(event, Logged) and event.step == 5 and not once.exists():
            once.write_text("killed")
            os.kill(os.getpid(), signal.SIGKILL)

    found = flatclr.train(flatclr.TrainConfig(**settings), auto_resume=True, on_event=[die])
    assert found.steps == 10
    assert dist.is_initialized()  # Ray's group is left as it was
    (once.parent / f"done-{dist.get_rank()}").write_text(str(found.path))


@pytest.mark.usefixtures("cluster")
def test_two_ray_workers_follow_the_trajectory_of_one_process_and_go_on_when_one_is_killed(tmp_path: Path) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    settings = config(tmp_path / "run", 10, log_every=1, checkpoint_every=4).to_dict()
    TorchTrainer(
        train_loop,
        train_loop_config={**settings, "once": str(tmp_path / "once")},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=str(tmp_path / "ray"), failure_config=FailureConfig(max_failures=1)),
    ).fit()
    assert (tmp_path / "once").exists()
    assert {(tmp_path / f"done-{rank}").read_text() for rank in (0, 1)} == {str(tmp_path / "run")}
    one = flatclr.train(config(tmp_path / "one", 10)).path
    torch.testing.assert_close(network_of(tmp_path / "run"), network_of(one), rtol=1e-5, atol=1e-5)
    steps = [row["step"] for row in RunDirectory(tmp_path / "run").metrics() if row["kind"] == "log"]
    assert steps == list(range(1, 11))
