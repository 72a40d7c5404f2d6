"""Cached large batches, paired data, schedules, loggers, users' own encoders, and what a run says when memory ends."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flatclr
from flatclr.checkpoint import load_checkpoint
from flatclr.data.sources import Dataset, PairedArrays, ResidentImages
from flatclr.diagnostics import gradient_snr
from flatclr.models.network import Network, TwoTowers
from flatclr.models.saving import load_encoder
from flatclr.optim import build_optimizer
from flatclr.runs import RunDirectory
from flatclr.training import memory, stepping
from flatclr.training.build import Parts, build
from flatclr.training.config import TrainConfig
from flatclr.training.errors import TrainingStoppedError
from flatclr.training.events import Evaluated, Event, Finished, Logged, Started, Warned
from flatclr.training.instruments import SNR_BATCHES, evaluation_metrics, probed_gradients
from flatclr.training.networks import FewerLaunches, one_update_of_running_statistics
from flatclr.training.recorder import Recorder
from flatclr.training.step import StepResult
from flatclr.training.stepping import Stepper, choose_step
from flatclr.training.trainer import fit, train
from tests.support.training_worker import config

ROOT = Path(__file__).parents[2]


def gradients(parts: Parts) -> dict[str, Tensor]:
    step, batch = next(parts.loader.steps(0, 1))
    parts.train_step.backward(parts.train_step.inputs.draw(batch, step), len(batch[0]))
    return {n: p.grad.clone() for n, p in parts.train_step.network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("micro_batch", [1, 3])
@pytest.mark.parametrize("objective", ["flatnce", "infonce", "fmicl", "dv"])
def test_micro_batches_give_the_gradient_of_the_whole_batch(tmp_path: Path, objective: str, micro_batch: int) -> None:
    whole, cached = (
        gradients(build(config(tmp_path, 2, objective=objective, micro_batch=m))) for m in (None, micro_batch)
    )
    assert whole.keys() == cached.keys()
    for name in whole:
        largest = whole[name].abs().max().item()
        torch.testing.assert_close(cached[name], whole[name], rtol=1e-4, atol=1e-5 * largest)


def test_micro_batches_replay_the_dropout_of_their_first_pass(tmp_path: Path) -> None:
    seen: list[Tensor] = []

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Dropout(0.5))

        def forward(self, images: Tensor) -> Tensor:
            seen.append(self.layers(images))
            return seen[-1]

    parts = build(config(tmp_path, 2, micro_batch=4, encoder_options={}), encoder=Noisy())
    gradients(parts)
    first, again = seen[-4:-2], seen[-2:]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(seen[-1] == 0, seen[-2] == 0)


def test_running_statistics_are_updated_once_a_step_and_the_run_says_so(tmp_path: Path) -> None:
    heard: list[Event] = []
    settings = {"encoder_options": {"norm": "batch", "width": 8}, "micro_batch": 4}
    result = train(config(tmp_path / "run", 3, **settings), on_event=[heard.append])
    counted = load_checkpoint(result.path / "checkpoint").state["train_step"]["network"]
    assert {v.item() for name, v in counted.items() if name.endswith("num_batches_tracked")} == {3}
    said = [event.message for event in heard if isinstance(event, Warned)]
    assert any("batch normalisation goes by micro-batches" in message for message in said)


def test_micro_batches_move_running_statistics_as_far_as_one_batch() -> None:
    norm = nn.BatchNorm1d(2, momentum=0.1)
    rows = torch.full((4, 2), 3.0) + torch.tensor([[-1.0], [1.0], [-1.0], [1.0]])  # each half has mean 3
    with one_update_of_running_statistics(norm, parts=2):
        for part in rows.split(2):
            norm(part)
    torch.testing.assert_close(norm.running_mean, torch.full((2,), 0.1 * 3))
    assert (norm.momentum, norm.num_batches_tracked.item()) == (0.1, 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_a_bad_step_leaves_running_statistics_and_beta_as_they_were(tmp_path: Path, micro_batch: int | None) -> None:
    options = {"encoder_options": {"norm": "batch", "width": 8}, "micro_batch": micro_batch}
    parts = build(config(tmp_path, 3, **options))
    step, (images,) = next(parts.loader.steps(0, 1))
    parts.train_step((images,), step)
    modules = (parts.train_step.bare_network, parts.train_step.objective)
    floats = [b for module in modules for b in module.buffers() if b.dtype == torch.float32]
    before = [b.clone() for b in floats]
    broken = images.float() / 255
    broken[0] = torch.inf
    parts.train_step((broken,), step + 1)
    assert int(parts.train_step.bad_steps) == 1
    assert all(torch.equal(a, b) for a, b in zip(floats, before, strict=True))
    evaluation_metrics(parts, step=2)


def test_a_skipped_first_step_of_captured_sgd_leaves_momentum_at_zero() -> None:
    layer = nn.Linear(3, 2)
    optimizer = build_optimizer("sgd", layer, learning_rate=0.1, weight_decay=0.0, capturable=True)
    before = layer.weight.detach().clone()
    for found in (1.0, 0.0):
        layer.weight.grad, layer.bias.grad = torch.zeros_like(layer.weight), torch.zeros_like(layer.bias)
        optimizer.found_inf = torch.tensor(found)  # type: ignore[attr-defined]
        optimizer.step()
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_fewer_launches_give_the_same_numbers(dtype: torch.dtype | None) -> None:
    def build() -> Network:
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 6)
        return Network(nn.Sequential(*layers), nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4)))

    views, found = torch.randn(2, 5, 3, 8, 8).unbind(), []
    for network in (build(), build()):
        call = FewerLaunches(network, dtype) if found else network
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            z_a, z_b = call(*views)
        (z_a * z_b).sum().backward()
        gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
        assert all(g is not None and g.dtype == torch.float32 for g in gradients.values())
        found.append({"z_a": z_a, "z_b": z_b, **gradients, **network.state_dict()})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert found[1]["encoder.1.num_batches_tracked"] == 1


class Unusual(nn.Module):
    """Shared weights, a layer with a forward of its own, one that nothing reaches, and a frozen normalisation."""

    class Centred(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight - self.weight.mean(1, keepdim=True), self.bias)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.centred, self.norm = self.Centred(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.norm(self.centred(self.second(self.first(x).relu()))),)


def test_fewer_launches_leave_unusual_layers_as_they_are() -> None:
    x, found = torch.randn(7, 6), []
    for fewer in (False, True):
        torch.manual_seed(0)
        network = Unusual()
        network.norm.eval()
        call = FewerLaunches(network, torch.bfloat16) if fewer else network
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (z,) = call(x)
        z.square().sum().backward()
        found.append((z, {n: p.grad for n, p in network.named_parameters()}, network.norm.num_batches_tracked))
    (z, gradients, count), (again, same, count_again) = found
    assert torch.equal(again, z)
    assert count == count_again == 0
    assert same["unused.weight"] is None
    for name, gradient in gradients.items():
        torch.testing.assert_close(same[name], gradient, rtol=2e-2, atol=2e-2)  # sums in bfloat16 of shared weights


def test_a_compiled_network_trains_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    plain, compiled = (train(config(tmp_path / str(c), 3, compile=c, eval_start=False)).path for c in (False, True))
    want, got = (load_checkpoint(run / "checkpoint").state["train_step"]["network"] for run in (plain, compiled))
    assert got.keys() == want.keys()
    torch.testing.assert_close(got, want)


def test_the_probe_encodes_no_more_at_once_than_training_does(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 2, micro_batch=2))
    sizes: list[int] = []
    encoder = parts.train_step.bare_network.encoders["encoder"]
    encoder.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    gradient_snr(probed_gradients(parts.train_step, parts.loader, step=1))
    assert set(sizes) == {2 * 2}  # both views


def test_looking_at_gradients_leaves_the_random_state_alone(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 2, negatives_per_anchor=3, ess_target=0.5))
    state = torch.get_rng_state()
    gradient_snr(probed_gradients(parts.train_step, parts.loader, step=1))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_bad_streak_is_remembered_after_a_good_step(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 9))
    step, (images,) = next(parts.loader.steps(0, 1))
    broken = torch.full_like(images.float(), torch.nan)
    for batch in (broken, broken, images):
        parts.train_step((batch,), step)
    assert (int(parts.train_step.bad_in_a_row), int(parts.train_step.longest_bad)) == (0, 2)


@pytest.mark.distributed
def test_two_processes_with_micro_batches_follow_the_trajectory_of_one(tmp_path: Path) -> None:
    one = train(config(tmp_path / "one", 6)).path
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    worker = ["-m", "tests.support.training_worker", str(tmp_path / "two"), "6", "--micro-batch"]
    done = subprocess.run([*command, *worker], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert (tmp_path / "two" / "encoder.safetensors").exists(), done.stderr[-3000:]
    got, want = (load_checkpoint(p / "checkpoint").state["train_step"]["network"] for p in (tmp_path / "two", one))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_momentum_encoder_and_a_queue_work_with_micro_batches(tmp_path: Path) -> None:
    moco = {"objective": "infonce", "pairing": "one_way", "momentum": 0.9, "queue": 16, "temperature": 0.2}
    whole, cached = (gradients(build(config(tmp_path, 2, **moco, micro_batch=m))) for m in (None, 3))
    for name in whole:
        torch.testing.assert_close(cached[name], whole[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_running_out_of_memory_suggests_the_micro_batch_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    parts = build(config(tmp_path, 2))
    forward = parts.train_step.bare_network.encoder.forward

    def small_memory(images: Tensor) -> Tensor:
        if len(images) > 2 * 2:  # both views of two samples
            raise error
        return forward(images)

    monkeypatch.setattr(parts.train_step.bare_network.encoder, "forward", small_memory)
    before = [p.detach().clone() for p in parts.train_step.network.parameters()]
    with pytest.raises(TrainingStoppedError, match=r"a batch of 8 samples must fit .* --micro-batch 2 fits"):
        fit(Recorder(parts))
    assert all(torch.equal(a, b) for a, b in zip(before, parts.train_step.network.parameters(), strict=True))


def test_the_cpu_allocator_is_understood_when_it_runs_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58, dtype=torch.float32)
    assert memory.is_out_of_memory(caught.value)
    assert not memory.is_out_of_memory(RuntimeError("shapes do not match"))


def test_gradient_snr_is_that_of_its_definition(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 2))
    state = {name: value.clone() for name, value in parts.train_step.network.state_dict().items()}
    beta = float(parts.train_step.objective.inverse_temperature)
    seen: list[np.ndarray[Any, Any]] = []
    probe = parts.train_step.probe_gradient

    def remembered(*arguments: Any) -> Tensor:
        gradient = probe(*arguments)
        seen.append(gradient.double().numpy())
        return gradient

    parts.train_step.probe_gradient = remembered  # type: ignore[method-assign]
    measured = gradient_snr(probed_gradients(parts.train_step, parts.loader, step=1))
    mean = np.mean(seen, axis=0)
    noise = math.sqrt(np.mean([np.sum((g - mean) ** 2) for g in seen]))
    assert len(seen) == SNR_BATCHES >= 8
    assert measured == pytest.approx(np.linalg.norm(mean) / noise, rel=1e-4)
    assert float(parts.train_step.objective.inverse_temperature) == beta  # a look changes nothing
    assert all(torch.equal(value, state[name]) for name, value in parts.train_step.network.state_dict().items())


def test_a_probed_gradient_is_the_one_training_would_use(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 2))
    step, batch = next(parts.loader.steps(0, 1))
    probed = parts.train_step.probe_gradient(batch, key=step)
    parts.train_step.backward(parts.train_step.inputs.draw(batch, step), len(batch[0]))
    gradient = parts.train_step.bare_network.last_layer.weight.grad
    assert gradient is not None
    torch.testing.assert_close(probed, gradient.flatten())


def test_ess_targets_follow_their_schedule(tmp_path: Path) -> None:
    schedule = [[0, 0.6], [8 / 1250, 0.2]]  # eight steps of 1,250 in an epoch
    parts = build(config(tmp_path, 12, ess_target=schedule))
    targets: list[float] = []

    def watched(*given: Any) -> Stepper:
        stepper = choose_step(*given)

        def take(step: int) -> StepResult:
            targets.append(parts.train_step.objective.scale.control.target)  # type: ignore[union-attr]
            return stepper.take(step)

        return Stepper(take)

    fit(Recorder(parts), make_step=watched)
    expected = [max(0.6 - 0.05 * step, 0.2) for step in range(12)]
    assert targets == pytest.approx(expected)


@pytest.mark.parametrize("schedule", [[], [0.5, 0.2], [[0, 0.5, 1]], "high"])
def test_a_schedule_of_another_form_is_refused(schedule: Any) -> None:
    with pytest.raises(ValueError, match=r"ess_target must be a number or \[\[epoch, target\], ...\]"):
        TrainConfig(ess_target=schedule)


def paired_npz(path: Path, *, rows: int = 400) -> Path:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(rows, 4))
    x = shared @ rng.normal(size=(4, 12)) + 0.1 * rng.normal(size=(rows, 12))
    y = shared @ rng.normal(size=(4, 2 * 3)).astype(np.float32) + 0.1 * rng.normal(size=(rows, 6))
    np.savez(path, x=x.astype(np.float32), y=y.reshape(rows, 2, 3).astype(np.float32))
    return path


def test_paired_data_train_two_towers_that_find_each_other(tmp_path: Path) -> None:
    data = str(paired_npz(tmp_path / "pairs.npz"))
    settings = {"data": data, "encoder": "auto", "encoder_options": {"width": 32}, "batch_size": 32, "eval_start": True}
    result = train(config(tmp_path / "run", 120, **settings, learning_rate=3e-3, log_every=60))
    rows = [row for row in RunDirectory.open(result.path).metrics() if row["kind"] == "evaluation"]
    assert rows[0]["retrieval_at_1"] < 0.3
    assert rows[-1]["retrieval_at_1"] > 0.6
    assert rows[-1]["pool_mi_best_nats"] > rows[0]["pool_mi_best_nats"] + 0.5
    x, y = (load_encoder(result.path / f"encoder_{side}") for side in "xy")
    assert x(torch.zeros(3, 12)).shape == y(torch.zeros(3, 6)).shape == (3, 32)
    log = next(row for row in RunDirectory.open(result.path).metrics() if row["kind"] == "log")
    assert log["ceiling_nats"] == pytest.approx(math.log(32))  # cross: 31 negatives and the positive


def test_images_and_rows_may_be_paired(tmp_path: Path) -> None:
    pairs = PairedArrays(torch.rand(64, 1, 16, 16), torch.rand(64, 5))
    parts = build(config(tmp_path, 2, encoder="auto", encoder_options={}), data=Dataset("mixed", pairs, None))
    network = parts.train_step.bare_network
    assert isinstance(network, TwoTowers)
    assert [type(t.encoder).__name__ for t in (network.tower_x, network.tower_y)] == ["SmallCNN", "MLP"]
    fit(Recorder(parts))


class Pooled(nn.Module):
    """An encoder that says nothing about its width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(images).relu().mean((2, 3))


def test_a_module_of_the_users_own_is_trained_saved_and_resumed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder, fresh = Pooled(), Pooled()
    start = encoder.conv.weight.clone()
    result = train(config(tmp_path / "run", 8, encoder_options={}), encoder=encoder)
    assert not torch.equal(encoder.conv.weight, start)
    loaded = load_encoder(result.path, into=Pooled())
    assert torch.equal(loaded.conv.weight, encoder.conv.weight)
    (result.path / "checkpoint" / "step-000000008.pt").unlink()
    train(TrainConfig(), resume=result.path, encoder=fresh)
    assert torch.equal(fresh.conv.weight, encoder.conv.weight)


def test_an_encoder_without_flat_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the encoder must return features \[N, d\], got shape \[2, 6, 26, 26\]"):
        train(config(tmp_path / "run", 2), encoder=nn.Conv2d(1, 6, 3))
    assert not (tmp_path / "run").exists()


def test_tensorboard_shows_what_metrics_hold_also_after_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train(config(tmp_path / "run", 10, eval_every=5))
    (result.path / "checkpoint" / "step-000000010.pt").unlink()
    train(TrainConfig(), resume=result.path)
    events = EventAccumulator(str(result.path)).Reload()
    rows = RunDirectory.open(result.path).metrics()
    for kind, name in (("log", "ess"), ("log", "loss"), ("evaluation", "knn")):
        wanted = [(row["step"], row[name]) for row in rows if row["kind"] == kind]
        got = [(event.step, event.value) for event in events.Scalars(f"{kind}/{name}")]
        assert got == [(step, pytest.approx(value, rel=1e-6)) for step, value in wanted]


def test_wandb_is_asked_for_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="wandb must be installed"):
        train(config(tmp_path / "run", 2, wandb="project"))
    assert not (tmp_path / "run").exists()


def test_a_full_disk_while_metrics_are_written_stops_the_run_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunDirectory, "append_metrics", full)
    with pytest.raises(TrainingStoppedError, match="the metrics must be writable, got No space left on device"):
        train(config(tmp_path / "run", 8))


def test_a_run_with_an_encoder_of_the_users_own_says_so_when_resumed_without_it(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", 4, encoder_options={}), encoder=Pooled()).path
    with pytest.raises(ValueError, match="the run trained an encoder of your own, got none"):
        train(TrainConfig(), resume=run)


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


def test_callbacks_hear_every_row_of_metrics(tmp_path: Path) -> None:
    heard: list[Event] = []
    result = flatclr.train(config(tmp_path / "run", 10, eval_start=True), on_event=[heard.append])
    rows = RunDirectory.open(result.path).metrics()
    assert [event.row() for event in heard if isinstance(event, Logged | Evaluated)] == rows
    assert rows[0]["kind"] == "evaluation"
    assert rows[0]["step"] == 0  # the untrained encoder
    assert [type(heard[0]), type(heard[-1])] == [Started, Finished]


def test_views_of_another_size_train_an_encoder_of_the_images(tmp_path: Path) -> None:
    seen: list[tuple[bool, int]] = []

    class Watched(nn.Sequential):
        def forward(self, images: Tensor) -> Tensor:
            seen.append((self.training, images.shape[-1]))
            return super().forward(images)

    encoder = Watched(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    data = Dataset("random", ResidentImages(torch.randint(256, (40, 1, 28, 28), dtype=torch.uint8)), None)
    train(config(tmp_path / "run", 3, view_size=20, eval_every=3, micro_batch=None), data=data, encoder=encoder)
    assert {size for training, size in seen if training} == {20}
    assert {size for training, size in seen if not training} == {20, 28}  # the pool of views, and features of images


def test_an_encoder_bound_to_its_size_refuses_views_of_another(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"view_size must be one that the encoder takes .* got 20 .*leave it out"):
        train(config(tmp_path / "run", 3, view_size=20, encoder="mlp", encoder_options={"width": 8}))
    assert not (tmp_path / "run").exists()


def test_the_network_of_a_paired_run_finds_the_partner_of_every_row(tmp_path: Path) -> None:
    """Which the encoders alone do not: the spaces of their features have nothing to do with each other."""
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    y = x @ torch.randn(6, 9, generator=torch.Generator().manual_seed(1))
    np.savez(tmp_path / "pairs.npz", x=x.numpy(), y=y.numpy())
    settings = {"data": str(tmp_path / "pairs.npz"), "encoder": "auto", "batch_size": 32, "eval_every": 150}
    run = train(config(tmp_path / "run", 150, **settings, encoder_options={"width": 64}))
    random_state = torch.get_rng_state()
    z_x, z_y = flatclr.load_network(run.path)(x, y)
    assert torch.equal(torch.get_rng_state(), random_state)
    found = (z_x / z_x.norm(dim=1, keepdim=True)) @ (z_y / z_y.norm(dim=1, keepdim=True)).T
    assert (found.argmax(1) == torch.arange(200)).float().mean() > 0.9
    assert run.metrics["retrieval_at_1"] > 0.9


def test_the_network_of_a_run_is_the_one_that_was_trained(tmp_path: Path) -> None:
    heard: list[Event] = []
    run = train(config(tmp_path / "run", 3), on_event=[heard.append])
    (trained,) = [event.network for event in heard if isinstance(event, Started)]
    network, images = flatclr.load_network(run.path), torch.rand(4, 1, 28, 28)
    assert not network.training
    assert torch.equal(network(images)[0], trained.eval()(images)[0])
    assert network.encoder.normalisation is not None  # type: ignore[union-attr]


def test_paired_data_have_no_view_size(tmp_path: Path) -> None:
    np.savez(tmp_path / "pairs.npz", x=np.random.rand(40, 3).astype("f"), y=np.random.rand(40, 2).astype("f"))
    with pytest.raises(ValueError, match=r"view_size must be None for paired data, got 20"):
        train(config(tmp_path / "run", 3, data=str(tmp_path / "pairs.npz"), encoder="auto", view_size=20))


@pytest.mark.parametrize("own", [True, False])
def test_only_networks_of_this_package_are_given_weights_rounded_before_they_are_called(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(stepping, "GraphedStep", lambda *_, fewer_launches: asked.append(fewer_launches))
    encoder = None if own else nn.Sequential(nn.Flatten(), nn.Linear(784, 8))
    stepping.captured(build(config(tmp_path, 2), encoder=encoder), iter(()))
    assert asked == [own]
