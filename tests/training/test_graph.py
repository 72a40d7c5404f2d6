"""The captured step: what it is fed, when there is none, and what is said then; its replays are made by hand here."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flatclr.capture import CaptureError, WaitsForDeviceError
from flatclr.data.loading import Batch
from flatclr.distributed import Ranks
from flatclr.training import graph as graph_module
from flatclr.training.build import Parts, build
from flatclr.training.config import TrainConfig
from flatclr.training.errors import TrainingStoppedError
from flatclr.training.events import Event, Warned
from flatclr.training.graph import GraphedStep, GraphedSteps, why_not_graphed
from flatclr.training.inputs import ImageViews
from flatclr.training.recorder import Recorder
from flatclr.training.step import StepResult
from flatclr.training.stepping import Stepper, batches_from, captured, choose_step
from flatclr.training.throughput import Throughput
from flatclr.training.trainer import Own, fit, train, train_with
from tests.support.images import write_pngs
from tests.support.training_worker import SEVERAL_SIZES, config, network_of


class MadeAgain:
    """A graph whose replay takes the captured step once more, from the memory a graph would read."""

    def __init__(self, step: GraphedStep) -> None:
        self.step = step

    def replay(self) -> None:
        self.step.result = self.step._take()


@pytest.fixture
def _without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a captured step asks of CUDA is done by hand."""
    monkeypatch.setattr(GraphedStep, "_warm_up", lambda _: None)
    monkeypatch.setattr(GraphedStep, "_captured", lambda step: (MadeAgain(step), None))
    monkeypatch.setattr(graph_module, "_feed", Tensor.copy_)


def capture(parts: Parts, batches: Iterator[Batch], first: int) -> Stepper:
    """The captured step, as on a CUDA device."""
    return Stepper(captured(parts, batches, first))


def train_captured(given: TrainConfig, resume: Path | None = None) -> Path:
    """The directory of a run whose steps are captured ones."""
    return train_with(given, Own(), resume=resume, make_step=capture).path


def streamed_images(folder: Path) -> dict[str, Any]:
    """Settings of a run on image files."""
    write_pngs(folder, 40)
    return {"data": str(folder), "resident_gib": 0.0, "workers": 2}


BETWEEN_REPLAYS: dict[str, Any] = {"log_every": 3, "eval_every": 4, "ess_target": [[0, 0.5], [0.002, 0.2]]}


@pytest.mark.usefixtures("_without_cuda")
@pytest.mark.parametrize("drawn_rows", [1, 3 * 16])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        BETWEEN_REPLAYS,
        {"negatives_per_anchor": 5},
        {"encoder_options": {"norm": "batch", "width": 8}},
        {"encoder_options": {"norm": "batch", "width": 8}, **SEVERAL_SIZES},
    ],
    ids=["plain", "logged and evaluated", "drawn negatives", "batch normalisation", "views of several sizes"],
)
def test_replays_give_the_weights_of_eager_steps(
    settings: dict[str, Any], drawn_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = train(config(tmp_path / "eager", 10, **settings)).path
    monkeypatch.setattr(graph_module, "DRAWN_ROWS", drawn_rows)
    replayed = train_captured(config(tmp_path / "replayed", 10, **settings))
    torch.testing.assert_close(network_of(replayed), network_of(eager), rtol=0, atol=0)


@pytest.mark.usefixtures("_without_cuda")
def test_replays_of_streamed_images_give_the_weights_of_eager_steps(tmp_path: Path) -> None:
    streamed = streamed_images(tmp_path / "images")
    eager = train(config(tmp_path / "eager", 10, **streamed)).path
    replayed = train_captured(config(tmp_path / "replayed", 10, **streamed))
    torch.testing.assert_close(network_of(replayed), network_of(eager), rtol=0, atol=0)


@pytest.mark.usefixtures("_without_cuda")
@pytest.mark.parametrize(
    ("streamed", "sizes"),
    [
        (False, {}),
        (True, {}),
        (False, SEVERAL_SIZES),
        (True, {"size_schedule": [[0, 12], [9 / 4, 8]], "views_per_image": 3}),  # it goes on from step 8
    ],
    ids=str,
)
def test_a_resumed_captured_run_ends_with_the_weights_of_a_whole_one(
    streamed: bool, sizes: dict[str, Any], tmp_path: Path
) -> None:
    settings = sizes | (streamed_images(tmp_path / "images") if streamed else {})
    whole = train_captured(config(tmp_path / "whole", 10, **settings))
    run = train_captured(config(tmp_path / "run", 10, **settings))
    (run / "checkpoint" / "step-000000010.pt").unlink()
    train_captured(TrainConfig(), resume=run)
    torch.testing.assert_close(network_of(run), network_of(whole), rtol=0, atol=0)


@pytest.mark.usefixtures("_without_cuda")
def test_sizes_that_are_still_to_come_are_captured_before_the_first_step(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 10, **SEVERAL_SIZES))
    first, later = (groups for _, groups in parts.schedule.view_plan)
    steps = captured(parts, iter(()), 0)
    assert isinstance(steps, GraphedSteps)
    assert list(steps.steps) == [first, later]
    assert parts.train_step.inputs.groups == first  # type: ignore[attr-defined]
    resumed = captured(parts, iter(()), 4)
    assert isinstance(resumed, GraphedSteps)
    assert list(resumed.steps) == [later]
    assert parts.schedule.groups_from(9) == [later]
    short = build(config(tmp_path, 3, **SEVERAL_SIZES))
    assert short.schedule.groups_from(0) == [first]


@pytest.mark.usefixtures("_without_cuda")
def test_nothing_of_a_captured_step_is_read_between_log_lines(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 8, log_every=4, checkpoint_every=100))
    read: list[int] = []
    taken: list[int] = []

    class Watched:
        """A result that remembers when it is looked at."""

        def __init__(self, result: StepResult) -> None:
            self.result = result

        def __getattr__(self, name: str) -> Any:
            read.append(taken[-1])
            return getattr(self.result, name)

    def watched(*given: Any) -> Stepper:
        stepper = capture(*given)

        def take(step: int) -> Any:
            taken.append(step)
            return Watched(stepper.take(step))

        return Stepper(take)

    elsewhere = replace(parts, device=torch.device("meta"))  # a CPU is looked at after every step
    fit(Recorder(elsewhere), make_step=watched)
    assert taken == list(range(8))
    assert set(read) == {3, 7}


LOOKS = "fp16, LARS, a queue or a momentum encoder looks at every step from the host"


def on_a_gpu(parts: Parts) -> Parts:
    """As far as choosing a step goes: there the optimizer is fused, and skips a bad step by itself."""
    loader = copy(parts.loader)
    loader.device = torch.device("cuda")
    if parts.config.optimizer != "lars":
        parts.train_step.optimizer.defaults["fused"] = True
    return replace(parts, device=loader.device, loader=loader, train_step=replace(parts.train_step))


def stepper_of(parts: Parts, **given: Any) -> Stepper:
    """From the first step."""
    return choose_step(parts, batches_from(parts, 0, Throughput(8, torch.device("cpu"))), 0, **given)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, None),
        ({"micro_batch": 4}, "the batch is cut into micro-batches"),
        ({"optimizer": "lars"}, LOOKS),
        ({"queue": 16}, LOOKS),
        ({"momentum": 0.9, "pairing": "one_way"}, LOOKS),
    ],
    ids=str,
)
def test_what_keeps_a_step_from_being_captured_is_named(
    settings: dict[str, Any], reason: str | None, tmp_path: Path
) -> None:
    parts = build(config(tmp_path, 2, **settings))
    assert why_not_graphed(parts.train_step, parts.loader) == "the device is cpu"
    parts = on_a_gpu(parts)
    assert why_not_graphed(parts.train_step, parts.loader) == reason


def test_several_processes_and_pairs_are_not_captured(tmp_path: Path) -> None:
    parts = on_a_gpu(build(config(tmp_path, 2)))
    several = replace(parts.train_step, ranks=Ranks(rank=0, size=2))
    assert why_not_graphed(several, parts.loader) == "several processes share the batch"
    np.savez(tmp_path / "pairs.npz", x=np.random.rand(40, 3).astype("f"), y=np.random.rand(40, 2).astype("f"))
    settings = {"data": str(tmp_path / "pairs.npz"), "encoder": "auto", "encoder_options": {}}
    paired = on_a_gpu(build(config(tmp_path, 2, **settings)))
    assert why_not_graphed(paired.train_step, paired.loader) == "the data are pairs"


@pytest.mark.parametrize(("graph", "said"), [(None, True), (False, False)])
def test_an_encoder_from_elsewhere_is_not_captured_unasked(graph: bool | None, said: bool, tmp_path: Path) -> None:
    elsewhere = nn.Sequential(nn.Flatten(), nn.Linear(784, 8))
    warning = stepper_of(on_a_gpu(build(config(tmp_path, 2, graph=graph), encoder=elsewhere))).warning
    message = "steps are not captured in a CUDA graph: the encoder is not one of this package; --graph tries it"
    assert (warning or "").startswith(message) == said
    assert (warning is not None) == said


def test_why_a_step_is_not_captured_is_told_before_it_is_taken(tmp_path: Path) -> None:
    heard: list[Event] = []

    def slow(*given: Any) -> Stepper:
        return Stepper(choose_step(*given).take, "steps are slow.")

    recorder = Recorder(build(config(tmp_path, 2, log_every=1)), listeners=[heard.append])
    fit(recorder, make_step=slow)
    assert heard[1] == Warned(step=0, message="steps are slow.")
    kinds = [event.kind for event in heard if event.kind != "progress"]  # which slow machines hear of
    assert kinds == ["start", "warning", "log", "log", "evaluation"]


def pretend_a_graph_fails(parts: Parts, error: Exception) -> Stepper:
    """How steps are taken on a device where making the captured one raises this."""

    def failing(*_: Any) -> Any:
        raise error

    return stepper_of(replace(parts, device=torch.device("cuda")), why_not=lambda _: None, capture=failing)


def test_a_step_that_waits_for_the_device_is_announced_and_taken_eagerly(tmp_path: Path) -> None:
    pretending, plain = (build(config(tmp_path, 2)) for _ in range(2))
    eager = pretend_a_graph_fails(pretending, WaitsForDeviceError("the step waits for the device"))
    assert eager.warning == "steps are not captured in a CUDA graph: the step waits for the device."
    assert torch.equal(eager.take(0).loss, stepper_of(plain).take(0).loss)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (CaptureError("no such call"), TrainingStoppedError, r"broken capture \(no such call\); pass --no-graph"),
        (RuntimeError("a bug of ours"), RuntimeError, "a bug of ours"),
    ],
    ids=str,
)
def test_what_else_goes_wrong_in_a_capture_is_not_hidden(
    error: Exception, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        pretend_a_graph_fails(build(config(tmp_path, 2)), error)


def test_a_captured_step_is_fed_the_views_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn three steps at a time, in any order, as they are drawn for the eager step."""
    parts = build(config(tmp_path, 2))
    (images,) = next(batch for _, batch in parts.loader.steps(0, 1))
    inputs = parts.train_step.inputs
    assert isinstance(inputs, ImageViews)
    monkeypatch.setattr(graph_module, "DRAWN_ROWS", 3 * 2 * len(images) + 1)
    step = object.__new__(GraphedStep)
    step.loader, step.inputs, step.batch = parts.loader, inputs, images
    step.parameters, step.drawn_steps = inputs.parameters(images, 0), range(0)
    asked: list[tuple[int | str, ...]] = []
    drawing = ImageViews.parameters
    monkeypatch.setattr(ImageViews, "parameters", lambda *args: asked.append(args[2:]) or drawing(*args))
    for number in (0, 1, 2, 3, 4, 9, 2):
        assert torch.equal(step._drawn(number), drawing(inputs, images, number).values_NP)
    assert asked == [(0, 1, 2), (3, 4, 5), (9, 10, 11), (2, 3, 4)]
    monkeypatch.setattr(graph_module, "DRAWN_ROWS", 1)
    assert torch.equal(step._drawn(7), drawing(inputs, images, 7).values_NP)
    assert asked[-1] == (7,)
