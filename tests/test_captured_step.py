"""The captured step: what it is fed, when there is none, and what is said then; its replays are made by hand here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from flatclr.cli import train as cli_train
from flatclr.cli.main import app
from flatclr.distributed import Ranks
from flatclr.training import graph as graph_module
from flatclr.training import trainer as trainer_module
from flatclr.training.config import TrainConfig
from flatclr.training.graph import CaptureError, GraphedStep, WaitsForDeviceError, why_not_graphed
from flatclr.training.inputs import ImageViews
from flatclr.training.step import StepResult
from flatclr.training.trainer import Trainer, TrainingStoppedError, train
from tests.test_streaming import write_pngs
from tests.training_worker import config, network_of


class MadeAgain:
    """A graph whose replay takes the captured step once more, from the memory a graph would read."""

    def __init__(self, step: GraphedStep) -> None:
        self.step = step

    def replay(self) -> None:
        self.step.result = self.step._take()


@pytest.fixture
def _captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trainer takes the captured step, as on a CUDA device."""

    def stepper(trainer: Trainer) -> GraphedStep:
        return trainer._graphed(batch for _, batch in trainer.loader.steps(trainer.step, trainer.total_steps))

    monkeypatch.setattr(GraphedStep, "_warm_up", lambda _: None)
    monkeypatch.setattr(GraphedStep, "_captured", lambda step: (MadeAgain(step), None))
    monkeypatch.setattr(graph_module, "_feed", Tensor.copy_)
    monkeypatch.setattr(Trainer, "_stepper", stepper)


def streamed_images(folder: Path) -> dict[str, Any]:
    """Settings of a run on image files."""
    write_pngs(folder, 40)
    return {"data": str(folder), "resident_gib": 0.0, "workers": 2}


BETWEEN_REPLAYS: dict[str, Any] = {"log_every": 3, "eval_every": 4, "ess_target": [[0, 0.5], [0.002, 0.2]]}


@pytest.mark.parametrize("drawn_rows", [1, 3 * 16])
@pytest.mark.parametrize(
    "settings",
    [{}, BETWEEN_REPLAYS, {"negatives_per_anchor": 5}, {"encoder_options": {"norm": "batch", "width": 8}}],
    ids=["plain", "logged and evaluated", "drawn negatives", "batch normalisation"],
)
def test_replays_give_the_weights_of_eager_steps(
    settings: dict[str, Any], drawn_rows: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    eager = train(config(tmp_path / "eager", 10, **settings)).path
    request.getfixturevalue("_captured")
    request.getfixturevalue("monkeypatch").setattr(graph_module, "DRAWN_ROWS", drawn_rows)
    replayed = train(config(tmp_path / "replayed", 10, **settings)).path
    torch.testing.assert_close(network_of(replayed), network_of(eager), rtol=0, atol=0)


def test_replays_of_streamed_images_give_the_weights_of_eager_steps(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    streamed = streamed_images(tmp_path / "images")
    eager = train(config(tmp_path / "eager", 10, **streamed)).path
    request.getfixturevalue("_captured")
    replayed = train(config(tmp_path / "replayed", 10, **streamed)).path
    torch.testing.assert_close(network_of(replayed), network_of(eager), rtol=0, atol=0)


@pytest.mark.usefixtures("_captured")
@pytest.mark.parametrize("streamed", [False, True])
def test_a_resumed_captured_run_ends_with_the_weights_of_a_whole_one(streamed: bool, tmp_path: Path) -> None:
    settings = streamed_images(tmp_path / "images") if streamed else {}
    whole = train(config(tmp_path / "whole", 10, **settings)).path
    run = train(config(tmp_path / "run", 10, **settings)).path
    (run / "checkpoint" / "step-000000010.pt").unlink()
    train(TrainConfig(), resume=run)
    torch.testing.assert_close(network_of(run), network_of(whole), rtol=0, atol=0)


@pytest.mark.usefixtures("_captured")
def test_nothing_of_a_captured_step_is_read_between_log_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(config(tmp_path, 8, log_every=4, checkpoint_every=100), None)
    take_step = trainer._stepper()
    read: list[int] = []
    taken: list[int] = []

    class Watched:
        """A result that remembers when it is looked at."""

        def __init__(self, result: StepResult) -> None:
            self.result = result

        def __getattr__(self, name: str) -> Any:
            read.append(taken[-1])
            return getattr(self.result, name)

    def watched(step: int) -> Any:
        taken.append(step)
        return Watched(take_step(step))

    monkeypatch.setattr(trainer, "_stepper", lambda: watched)
    monkeypatch.setattr(trainer, "device", torch.device("meta"))  # a CPU is looked at after every step
    trainer.fit()
    assert taken == list(range(8))
    assert set(read) == {3, 7}


LOOKS = "fp16, LARS, a queue or a momentum encoder looks at every step from the host"


def on_a_gpu(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as choosing a step goes: there the optimizer is fused, and skips a bad step by itself."""
    monkeypatch.setattr(trainer, "device", torch.device("cuda"))
    monkeypatch.setattr(trainer.loader, "device", torch.device("cuda"))
    if trainer.config.optimizer != "lars":
        trainer.train_step.optimizer.defaults["fused"] = True
    trainer.train_step.__post_init__()


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
    settings: dict[str, Any], reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(config(tmp_path, 2, **settings), None)
    assert why_not_graphed(trainer.train_step, trainer.loader) == "the device is cpu"
    on_a_gpu(trainer, monkeypatch)
    assert why_not_graphed(trainer.train_step, trainer.loader) == reason


def test_several_processes_and_pairs_are_not_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(config(tmp_path, 2), None)
    on_a_gpu(trainer, monkeypatch)
    trainer.train_step.ranks = Ranks(rank=0, size=2)
    assert why_not_graphed(trainer.train_step, trainer.loader) == "several processes share the batch"
    np.savez(tmp_path / "pairs.npz", x=np.random.rand(40, 3).astype("f"), y=np.random.rand(40, 2).astype("f"))
    paired = Trainer(config(tmp_path, 2, data=str(tmp_path / "pairs.npz"), encoder="auto", encoder_options={}), None)
    on_a_gpu(paired, monkeypatch)
    assert why_not_graphed(paired.train_step, paired.loader) == "the data are pairs"


@pytest.mark.parametrize(("graph", "said"), [(None, True), (False, False)])
def test_an_encoder_from_elsewhere_is_not_captured_unasked(
    graph: bool | None, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    trainer = Trainer(
        config(tmp_path, 2, graph=graph),
        None,
        encoder=nn.Sequential(nn.Flatten(), nn.Linear(784, 8)),
        on_event=[lambda _, row: heard.append(row.get("message", ""))],
    )
    on_a_gpu(trainer, monkeypatch)
    trainer._stepper()
    message = "steps are not captured in a CUDA graph: the encoder is not one of this package; --graph tries it"
    assert [text.startswith(message) for text in heard] == [True] * said


@pytest.mark.parametrize(
    ("flags", "graph"), [([], None), (["--graph"], True), (["--no-graph"], False)], ids=["", "graph", "no-graph"]
)
def test_the_command_line_asks_for_a_graph_or_for_none(
    flags: list[str], graph: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[TrainConfig] = []

    def stop(given: TrainConfig, **_: Any) -> None:
        asked.append(given)
        raise TrainingStoppedError("seen enough.")

    monkeypatch.setattr(cli_train, "train", stop)
    CliRunner().invoke(app, ["train", *flags])
    assert [given.graph for given in asked] == [graph]


def pretend_a_graph_fails(trainer: Trainer, error: Exception, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stepper of a trainer on a device where making the captured step raises this."""

    def failing(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(trainer_module, "why_not_graphed", lambda *_: None)
    monkeypatch.setattr(trainer_module, "GraphedStep", failing)
    trainer.device = torch.device("cuda")
    try:
        return trainer._stepper()
    finally:
        trainer.device = torch.device("cpu")


def test_a_step_that_waits_for_the_device_is_announced_and_taken_eagerly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    listen = [lambda _, row: heard.append(row.get("message", ""))]
    pretending, plain = (Trainer(config(tmp_path, 2), None, on_event=listen) for _ in range(2))
    eager = pretend_a_graph_fails(pretending, WaitsForDeviceError("the step waits for the device"), monkeypatch)
    assert heard == ["steps are not captured in a CUDA graph: the step waits for the device."]
    assert torch.equal(eager(0).loss, plain._stepper()(0).loss)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (CaptureError("no such call"), TrainingStoppedError, r"broken capture \(no such call\); pass --no-graph"),
        (RuntimeError("a bug of ours"), RuntimeError, "a bug of ours"),
    ],
    ids=str,
)
def test_what_else_goes_wrong_in_a_capture_is_not_hidden(
    error: Exception, kind: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(kind, match=message):
        pretend_a_graph_fails(Trainer(config(tmp_path, 2), None), error, monkeypatch)


@pytest.mark.parametrize(
    ("message", "kind"),
    [("called a synchronizing CUDA operation", WaitsForDeviceError), ("out of memory", RuntimeError)],
)
def test_waiting_is_told_from_other_errors_and_the_mode_is_put_back(
    message: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[Any] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def take() -> None:
        raise RuntimeError(message)

    step = object.__new__(GraphedStep)
    monkeypatch.setattr(step, "_take", take)
    with pytest.raises(RuntimeError) as raised:
        step._take_without_waiting()
    assert type(raised.value) is kind
    assert modes == [0, "error", 0]


def test_a_captured_step_is_fed_the_views_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn three steps at a time, in any order, as they are drawn for the eager step."""
    trainer = Trainer(config(tmp_path, 2), None)
    (images,) = next(batch for _, batch in trainer.loader.steps(0, 1))
    inputs = trainer.train_step.inputs
    assert isinstance(inputs, ImageViews)
    monkeypatch.setattr(graph_module, "DRAWN_ROWS", 3 * 2 * len(images) + 1)
    step = object.__new__(GraphedStep)
    step.loader, step.inputs, step.batch = trainer.loader, inputs, images
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


def test_a_broken_capture_is_explained_by_what_broke_it() -> None:
    ending = RuntimeError("operation failed due to a previous error during capture")
    ending.__context__ = RuntimeError("the cause")
    assert graph_module._first_of(ending) is ending.__context__
