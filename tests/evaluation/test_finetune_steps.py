"""How fine-tuning takes its steps: what each sees, what is read once, and what a captured one is fed."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr import capture
from flatclr.capture import CaptureError, WaitsForDeviceError
from flatclr.data.loading import BatchPlan, seeded_generator
from flatclr.data.sources import ResidentImages
from flatclr.data.views import crops_and_flips
from flatclr.evaluation import finetune_steps
from flatclr.evaluation.finetune import Classifier, Recipe, held, trained_classifier
from flatclr.evaluation.splits import AdaptedSource
from flatclr.evaluation.subjects import Subject, view_of
from flatclr.models.encoders import build_encoder
from flatclr.models.network import Normalisation
from flatclr.optim import build_optimizer, set_learning_rate, warmup_cosine
from tests.support.evaluation import CLASSES, pictures

finetune_module = import_module("flatclr.evaluation.finetune")  # whose name the package has for a function
RECIPE = Recipe(epochs=2, fewest_steps=7, batch_size=16)
NORMALISATION = Normalisation((0.5,), (0.5,))
CPU = torch.device("cpu")


class ReadAnew:
    """Images that are not in memory, and how many were read."""

    def __init__(self, source: ResidentImages) -> None:
        self.source, self.read = source, 0
        self.name, self.classes, self.labels = source.name, source.classes, source.labels
        self.channels, self.image_size, self.fingerprint = source.channels, source.image_size, source.fingerprint

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, index: Tensor) -> Tensor:
        self.read += len(index)
        return self.source.batch(index)


def striped(samples: int = 60) -> ResidentImages:
    return ResidentImages(*pictures(samples, seed=3), CLASSES, name="striped")


def subject() -> Subject:
    torch.manual_seed(0)
    encoder = build_encoder("cnn", channels=1, image_size=12, width=4, norm="batch")
    return Subject(encoder, "cnn", NORMALISATION)


def tuned(source: Any, chosen: Tensor | None = None, *, device: torch.device = CPU, **options: Any) -> Classifier:
    labels = source.labels
    assert labels is not None
    return trained_classifier(
        subject(), source, labels, classes=3, chosen=chosen, recipe=RECIPE, device=device, seed=5, **options
    )


def plainly_tuned(source: ResidentImages, chosen: Tensor) -> Classifier:
    """The recipe, step by step: every view drawn by itself."""
    task = finetune_module._Task(subject(), source, chosen, source.labels[chosen], RECIPE, CPU, 5)  # type: ignore[index]
    network = task.start(3).train()
    optimizer = build_optimizer("adamw", network, learning_rate=1e-3, weight_decay=1e-4)
    views = subject().normalised(crops_and_flips(RECIPE.smallest_crop))
    generator, plan = seeded_generator(5, "fine-tuning views"), BatchPlan(len(chosen), 16, 5)
    steps = RECIPE.steps(len(chosen))
    for step in range(steps):
        set_learning_rate(optimizer, 1e-3, warmup_cosine(step, total_steps=steps, warmup_steps=round(0.05 * steps)))
        index = chosen[plan.indices(step)]
        images = view_of(source.batch(index), views, generator)
        optimizer.zero_grad()
        F.cross_entropy(network(images), source.labels[index]).backward()  # type: ignore[index]
        optimizer.step()
    return network


def assert_same(one: Classifier, other: Classifier, *, rounding: float = 0.0) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=rounding)


ROUNDING = 1e-6  # weights that are captured lie in memory in another order


@pytest.mark.parametrize("drawn_rows", [1, 3 * 16, 3072])
@pytest.mark.parametrize("count", [60, 40])
def test_steps_that_are_drawn_at_once_train_as_those_drawn_one_by_one(
    count: int, drawn_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune_steps, "DRAWN_ROWS", drawn_rows)
    chosen = torch.randperm(60, generator=torch.Generator().manual_seed(1))[:count]
    assert_same(tuned(striped(), chosen), plainly_tuned(striped(), chosen))


def test_images_are_read_once_where_they_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, once, always = torch.arange(0, 60, 2), ReadAnew(striped()), ReadAnew(striped())
    told: list[tuple[str, int, int]] = []
    first = tuned(once, chosen, progress=lambda *args: told.append(args))
    assert once.read == len(chosen)
    assert told[0] == ("reading striped", 30, 30)
    assert told[-1] == ("fine-tuning", 7, 7)
    monkeypatch.setattr(finetune_module, "HELD_BYTES", 0)
    second = tuned(always, chosen)
    assert always.read == len(chosen) + 7 * 16  # for the linear probe, then in every step
    assert_same(first, second)


def test_images_in_memory_are_not_copied_and_resized_ones_are_made_once() -> None:
    source, everything = striped(), torch.arange(60)
    assert held(source, everything) == (source, everything)
    large = AdaptedSource(source, 3, 24, "bicubic")
    kept, numbers = held(large, torch.tensor([7, 3]))
    assert torch.equal(kept.batch(numbers), large.batch(torch.tensor([7, 3])))


class TakenAgain:
    """A graph whose replay takes the captured step once more, from the memory a graph would read."""

    def __init__(self, work: Any) -> None:
        self.replay = work


@pytest.fixture
def _without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a captured step asks of CUDA is done by hand."""
    monkeypatch.setattr(capture, "without_waiting", lambda work, _: work())
    monkeypatch.setattr(finetune_steps, "captured", lambda work, *_, **__: (TakenAgain(work), None))
    monkeypatch.setattr(finetune_module, "is_captured", lambda *_: True)


@pytest.mark.usefixtures("_without_cuda")
def test_replays_give_the_weights_of_eager_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps taken to warm up leave no trace, views and moments of the optimizer among what is put back."""
    monkeypatch.setattr(finetune_module, "build_optimizer", not_fused)
    monkeypatch.setattr(finetune_steps, "DRAWN_ROWS", 3 * 16)
    assert_same(tuned(striped()), plainly_tuned(striped(), torch.arange(60)), rounding=ROUNDING)


def not_fused(*args: Any, capturable: bool, **options: Any) -> torch.optim.Optimizer:
    """The optimizer of a capture exists on a GPU alone."""
    assert capturable
    return build_optimizer(*args, **options)


@pytest.mark.usefixtures("_without_cuda")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (WaitsForDeviceError("a step waits for the device"), "a step waits for the device"),
        (torch.OutOfMemoryError("CUDA out of memory"), "too little memory is free"),
    ],
)
def test_a_step_that_cannot_be_captured_is_announced_and_taken_eagerly(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(finetune_module, "build_optimizer", not_fused)
    monkeypatch.setattr(finetune_steps, "warm_up", refuse)
    with pytest.warns(UserWarning, match=rf"not captured in a CUDA graph: {reason}; it runs eagerly"):
        found = tuned(striped())
    assert_same(found, plainly_tuned(striped(), torch.arange(60)), rounding=ROUNDING)


@pytest.mark.usefixtures("_without_cuda")
def test_a_broken_capture_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise CaptureError("operation not permitted")

    monkeypatch.setattr(finetune_module, "build_optimizer", not_fused)
    monkeypatch.setattr(finetune_steps, "captured", breaks)
    with pytest.raises(ValueError, match=r"a broken capture \(operation not permitted\); pass --device cpu"):
        tuned(striped())


def test_what_is_captured_is_an_own_encoder_on_a_device_that_holds_the_images() -> None:
    here, there = SimpleNamespace(type="cpu"), SimpleNamespace(type="cuda")
    own, foreign = subject().bare, torch.nn.Flatten()

    def asked(device: Any, encoder: torch.nn.Module, resident: Any = ()) -> bool:
        return finetune_module.is_captured(SimpleNamespace(device=device, resident=resident), encoder)  # type: ignore[arg-type]

    assert asked(there, own)
    assert not asked(here, own)
    assert not asked(there, foreign)
    assert not asked(there, own, resident=None)
