"""A run: what it writes, that it learns, and that it survives."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr import checkpoint
from flatclr.data.loading import BatchPlan, Loader, seeded_generator
from flatclr.models.saving import load_encoder
from flatclr.runs import RunDirectory
from flatclr.training.build import build
from flatclr.training.config import TrainConfig
from flatclr.training.errors import TrainingStoppedError
from flatclr.training.events import Event, Logged, Warned
from flatclr.training.instruments import evaluation_metrics
from flatclr.training.parts import build_objective
from flatclr.training.quality import ImageQuality
from flatclr.training.queue import EmbeddingQueue
from flatclr.training.recipes import RECIPES
from flatclr.training.recorder import Recorder
from flatclr.training.trainer import fit, train
from tests.support.training_worker import config

ROOT = Path(__file__).parents[2]


def weights(run: Path) -> dict[str, Tensor]:
    loaded = checkpoint.load_checkpoint(run / "checkpoint")
    network: dict[str, Tensor] = loaded.state["train_step"]["network"]
    return network


def worker(out: Path, steps: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.training_worker", str(out), str(steps), *more]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_a_run_directory_says_what_happened(tmp_path: Path) -> None:
    result = train(config(tmp_path / "run", 10, eval_every=5, log_every=5))
    run = RunDirectory.open(result.path)
    assert TrainConfig.from_dict(run.config()).steps == 10
    assert json.loads((result.path / "environment.json").read_text())["torch"] == torch.__version__
    rows = run.metrics()
    assert [row["step"] for row in rows if row["kind"] == "log"] == [5, 10]
    log = next(row for row in rows if row["kind"] == "log")
    gauges = "loss mi_nats ceiling_nats saturation ess ess_quantiles beta alignment uniformity gradient_norm images_per_second"
    assert set(gauges.split()) <= log.keys()
    evaluation = [row for row in rows if row["kind"] == "evaluation"][-1]
    measured = "knn effective_rank pool_mi_nats pool_mi_best_nats collision_rate gradient_snr"
    assert set(measured.split()) <= evaluation.keys()
    encoder = load_encoder(result.path)
    assert encoder(torch.rand(2, 1, 28, 28)).shape[0] == 2


def test_training_teaches_the_encoder(tmp_path: Path) -> None:
    settings = {"batch_size": 32, "encoder_options": {"width": 16}, "log_every": 50, "eval_samples": 5000}
    parts = build(config(tmp_path / "run", 150, **settings))
    before = evaluation_metrics(parts, step=0)
    after = fit(Recorder(parts)).metrics
    assert after["pool_mi_best_nats"] > before["pool_mi_best_nats"] + 0.3
    assert after["knn"] > 0.7


def test_evaluation_draws_from_all_classes_of_sorted_data(tmp_path: Path) -> None:
    import numpy as np

    labels = np.repeat(np.arange(4), 50)
    np.savez(
        tmp_path / "sorted.npz",
        images=(60 * labels[:, None, None] + np.zeros((200, 28, 28))).astype(np.uint8),
        labels=labels,
    )
    parts = build(config(tmp_path / "run", 1, data=str(tmp_path / "sorted.npz"), eval_samples=40))
    assert isinstance(parts.quality, ImageQuality)
    encoder = parts.train_step.network.encoder
    _, chosen = parts.quality.features(encoder, parts.quality.source)
    assert chosen is not None
    assert len(chosen) == 40
    assert set(chosen.tolist()) == {0, 1, 2, 3}
    again = parts.quality.features(encoder, parts.quality.source)[1]
    assert torch.equal(chosen, again)


@pytest.mark.parametrize("stop", [2, 4, 6, 9])
def test_a_resumed_run_ends_with_the_weights_of_one_never_stopped(stop: int, tmp_path: Path) -> None:
    whole = train(config(tmp_path / "whole", 12)).path

    class StopHereError(Exception):
        pass

    def stop_there(event: Event) -> None:
        if isinstance(event, Logged) and event.step == stop:
            raise StopHereError

    with pytest.raises(StopHereError):
        train(config(tmp_path / "run", 12, log_every=1, checkpoint_every=1), on_event=[stop_there])
    train(TrainConfig(), resume=tmp_path / "run")
    assert_same(weights(tmp_path / "run"), weights(whole))
    steps = [row["step"] for row in RunDirectory.open(tmp_path / "run").metrics() if row["kind"] == "log"]
    assert steps == list(range(1, 13))  # nothing twice, nothing missing


def test_a_run_killed_before_its_first_checkpoint_starts_again_from_its_seed(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", 8, eval_start=True)).path
    whole, rows = weights(run), RunDirectory.open(run).metrics()
    for file in (run / "checkpoint").iterdir():
        file.unlink()
    train(TrainConfig(), resume=run)
    assert_same(weights(run), whole)
    again = RunDirectory.open(run).metrics()
    assert [(row["kind"], row["step"]) for row in again] == [(row["kind"], row["step"]) for row in rows]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 steps without a break."""
    return train(config(tmp_path_factory.mktemp("whole") / "run", 200)).path


@pytest.mark.parametrize("seen", [4, 12, 40])
def test_a_killed_run_resumes_to_the_same_weights(seen: int, whole_run: Path, tmp_path: Path) -> None:
    """Killed at no particular moment after a checkpoint was seen; no clock decides how far it came."""
    run = tmp_path / "run"
    process = worker(run, 200)
    while process.poll() is None and not any(int(p.stem[5:]) >= seen for p in run.glob("checkpoint/step-*.pt")):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert checkpoint.load_checkpoint(run / "checkpoint").step < 200
    resumed = worker(run, 200, "--resume")
    _, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors
    assert_same(weights(run), weights(whole_run))


@pytest.mark.parametrize("renamed", [0, 1])
def test_a_kill_during_a_checkpoint_write_costs_only_that_checkpoint(
    renamed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two files of a checkpoint take their names one after the other; stop before the first or the second does."""
    whole = train(config(tmp_path / "whole", 12)).path

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
    assert_same(weights(tmp_path / "run"), weights(whole))


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
    torch.testing.assert_close(weights(out), weights(one), rtol=1e-5, atol=1e-5)


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", 12)).path
    newest = sorted((run / "checkpoint").glob("*.pt"))[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    loaded = checkpoint.load_checkpoint(run / "checkpoint")
    assert loaded.step == 8
    assert "step-000000012.pt: its content does not match its checksum" in loaded.passed_over
    heard: list[Event] = []
    train(TrainConfig(), resume=run, on_event=[heard.append])
    assert any(isinstance(event, Warned) and "damaged checkpoint" in event.message for event in heard)


def test_only_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", 14)).path
    assert sorted(p.name for p in (run / "checkpoint").iterdir()) == [
        *("step-000000012.pt", "step-000000012.sha256", "step-000000014.pt", "step-000000014.sha256")
    ]


def test_a_full_disk_stops_the_run_and_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoint.replace_files

    def full_after_the_first(contents: Any) -> None:
        if any("000000008" in path.name for path in contents):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(contents)

    monkeypatch.setattr(checkpoint, "replace_files", full_after_the_first)
    with pytest.raises(TrainingStoppedError, match=r"No space left on device; the last checkpoint is intact"):
        train(config(tmp_path / "run", 12))
    assert checkpoint.load_checkpoint(tmp_path / "run" / "checkpoint").step == 4


def test_a_checkpoint_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    import hashlib
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'exploded'}",)

    folder = tmp_path / "checkpoint"
    folder.mkdir()
    torch.save({"step": Evil()}, folder / "step-000000001.pt")
    digest = hashlib.sha256((folder / "step-000000001.pt").read_bytes()).hexdigest()
    (folder / "step-000000001.sha256").write_text(digest)
    with pytest.raises(pickle.UnpicklingError):
        checkpoint.load_checkpoint(folder)
    assert not (tmp_path / "exploded").exists()


def test_a_run_that_diverges_stops_with_advice(tmp_path: Path) -> None:
    parts = build(config(tmp_path / "run", 50, max_bad_steps=3))
    with torch.no_grad():
        next(parts.train_step.network.parameters()).fill_(float("nan"))
    before = [p.clone() for p in parts.train_step.network.parameters()]
    with pytest.raises(TrainingStoppedError, match=r"got 3 bad steps in a row .* lower the learning rate"):
        fit(Recorder(parts))
    after = list(parts.train_step.network.parameters())
    assert all(torch.equal(a, b) for a, b in zip(after[1:], before[1:], strict=True))  # bad steps change nothing


def test_an_output_directory_with_a_run_in_it_is_refused(tmp_path: Path) -> None:
    train(config(tmp_path / "run", 2))
    with pytest.raises(FileExistsError, match="must not hold a run yet"):
        train(config(tmp_path / "run", 2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "flatnc"}, "objective must be one of .* did you mean 'flatnce'"),
        ({"batch_sise": 3}, "setting must be one of .* did you mean 'batch_size'"),
        ({"learning_rate": -1.0}, "learning_rate must be a finite number > 0, got -1.0"),
        ({"momentum": 0.9}, "pairing must be 'one_way' with a momentum encoder"),
        ({"ess_target": 1.5}, "ess_target must be a finite number > 0 and < 1"),
        ({"precision": "fp8"}, "precision must be one of"),
    ],
)
def test_a_bad_setting_is_named_before_any_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig().changed(**settings)


def test_a_batch_larger_than_the_data_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"batch_size must be .* <= 10000, got 20000"):
        train(config(tmp_path / "run", 2, batch_size=20_000))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", flatclr.objectives.OBJECTIVES)
def test_every_objective_trains_by_name(name: str, tmp_path: Path) -> None:
    result = train(config(tmp_path / "run", 2, objective=name))
    assert all(isinstance(row.get("loss", 0.0), float) for row in RunDirectory.open(result.path).metrics())


def test_a_queue_with_a_momentum_encoder_trains_and_resumes(tmp_path: Path) -> None:
    moco = {
        "objective": "infonce",
        "pairing": "one_way",
        "momentum": 0.9,
        "queue": 64,
        "temperature": 0.2,
        "ess_target": None,
    }
    whole = train(config(tmp_path / "whole", 8, **moco)).path
    run = train(config(tmp_path / "run", 8, **moco)).path
    (run / "checkpoint" / "step-000000008.pt").unlink()
    train(TrainConfig(), resume=run)
    assert_same(weights(run), weights(whole))
    assert RunDirectory.open(whole).metrics()[0]["ceiling_nats"] == pytest.approx(
        torch.tensor(8.0 - 1 + 64 + 1).log().item()
    )


def test_recipes_are_whole_configs_that_survive_a_round_trip() -> None:
    for make in RECIPES.values():
        assert TrainConfig.from_dict(make().to_dict()) == make()
        build_objective(make())


def test_batches_are_a_function_of_seed_and_step_and_cover_an_epoch() -> None:
    plan = BatchPlan(samples=23, batch_size=4, seed=1)
    epoch = torch.cat([plan.indices(step) for step in range(plan.steps_per_epoch)])
    assert len(epoch.unique()) == 20
    assert not torch.equal(plan.indices(0), plan.indices(plan.steps_per_epoch))
    assert torch.equal(plan.indices(7), BatchPlan(samples=23, batch_size=4, seed=1).indices(7))
    assert not torch.equal(
        torch.rand(3, generator=seeded_generator(0, 1)), torch.rand(3, generator=seeded_generator(0, 2))
    )


def test_reading_ahead_gives_the_batches_of_resident_images() -> None:
    class Streamed:
        def __init__(self, images: Tensor) -> None:
            self.stored = images

        def __len__(self) -> int:
            return len(self.stored)

        def batch(self, index: Tensor) -> Tensor:
            return self.stored[index]

    class Resident(Streamed):
        @property
        def in_memory(self) -> tuple[Tensor]:
            return (self.stored,)

    images = torch.arange(50).view(-1, 1, 1, 1)
    plan, cpu = BatchPlan(samples=50, batch_size=6, seed=0), torch.device("cpu")
    streamed, resident = (
        list(Loader(s(images), plan, own=slice(0, 6), device=cpu).steps(3, 20)) for s in (Streamed, Resident)
    )
    assert [step for step, _ in streamed] == list(range(3, 20))
    assert all(torch.equal(a, b) for (_, (a,)), (_, (b,)) in zip(streamed, resident, strict=True))


def test_a_queue_overwrites_its_oldest_rows_first() -> None:
    queue = EmbeddingQueue(5, 1)
    for start in (0.0, 3.0):
        queue.push(torch.arange(start, start + 3).view(3, 1))
    assert queue.rows.flatten().tolist() == [5.0, 1.0, 2.0, 3.0, 4.0]


def run_cli(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "flatclr", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def test_the_command_line_trains_and_resumes(tmp_path: Path) -> None:
    small = ["--batch-size", "8", "--set", "encoder_options={width: 8}", "--set", "eval_samples=500", "--device", "cpu"]
    done = run_cli("train", "--steps", "3", "--out", "run", "--json", *small, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["kind"] == "start"
    assert [event["kind"] for event in events[-2:]] == ["end", "report"]
    assert (tmp_path / "run" / "encoder.safetensors").exists()
    again = run_cli("train", "--resume", "run", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "encoder:" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--objective", "flatnc"), "did you mean 'flatnce'"),
        (("--data", "no-such-folder"), "data must be an existing path"),
        (("--resume", "no-such-run"), "a run directory must hold config.yaml"),
        (("--recipe", "cifar"), "recipe must be one of"),
        (("--set", "nonsense"), "--set must be NAME=VALUE"),
        (("--temperature", "-1"), "temperature must be a finite number > 0"),
        (("--temperature", "0.1", "--ess-target", "0.2"), "only one of --temperature and --ess-target"),
        (("--batch-size", "2"), "target must be > 1/2 = 0.5"),
        (("--ess-target", "0:0.5,1:0.01", "--batch-size", "8"), "target must be > 1/14"),
        (("--device", "gpu"), "device must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 'gpu'"),
        (("--set", "views={"), "--set views must have a YAML value"),
        (("--set", "views=3"), "views must be named values, got 3"),
        (("--out", "/dev/null/x"), "Not a directory"),
    ],
)
def test_bad_input_on_the_command_line_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = run_cli("train", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
