"""Fine-tuning on a CUDA device: the captured step and the eager one."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch

import flatclr
from flatclr.evaluation import finetune_steps, load_classifier
from flatclr.evaluation.finetune import Classifier
from flatclr.models import batch_norm
from tests.evaluation.test_finetune_steps import ReadAnew, striped, tuned
from tests.support.cuda import deterministic, needs_cuda
from tests.support.evaluation import small_data, small_encoder

pytestmark = needs_cuda
finetune_module = import_module("flatclr.evaluation.finetune")
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    with deterministic():
        yield


def assert_alike(one: Classifier, other: Classifier) -> None:
    """Together: Adam takes a whole step by the sign of a gradient that is all rounding."""
    weights, expected = (torch.cat([p.detach().flatten() for p in network.parameters()]) for network in (one, other))
    assert (weights - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("count", [60, 40])
def test_the_captured_step_trains_as_the_eager_one_and_as_the_cpu(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, graphs = torch.randperm(60, generator=torch.Generator().manual_seed(1))[:count], []
    made = finetune_steps.graphed
    monkeypatch.setattr(finetune_module, "graphed", lambda *given: graphs.append(made(*given)) or graphs[-1])
    captured = tuned(striped(), chosen, device=CUDA)
    assert [type(graph) for graph in graphs] == [finetune_steps.GraphedSteps]
    with batch_norm.by_pytorch():
        unfused = tuned(striped(), chosen, device=CUDA)
    monkeypatch.setattr(finetune_module, "is_captured", lambda *_: False)
    eager = tuned(striped(), chosen, device=CUDA)
    assert len(graphs) == 2
    for other in (unfused, eager, tuned(striped(), chosen).to(CUDA)):
        assert_alike(captured, other)


def test_streamed_images_train_the_classifier_of_resident_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = tuned(striped(), device=CUDA)
    monkeypatch.setattr(finetune_module, "HELD_BYTES", 0)
    assert_alike(tuned(ReadAnew(striped()), device=CUDA), resident)


def test_the_convolutions_that_are_quickest_are_captured_too() -> None:
    """As users have it: which ones these are is found by trying, before the capture."""
    torch.use_deterministic_algorithms(False)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False):
        classifier = flatclr.evaluation.finetune(small_encoder(), small_data(), device="cuda")
        assert not torch.backends.cudnn.benchmark
    assert classifier.accuracy.value > 0.9


def test_a_classifier_that_was_captured_learns_and_is_read_as_it_was_written(tmp_path: Path) -> None:
    classifier = flatclr.evaluation.finetune(small_encoder(), small_data(), device="cuda")
    assert classifier.accuracy.value > 0.9
    test = small_data().test
    again = load_classifier(classifier.save(tmp_path))
    torch.testing.assert_close(again.scores(test.images), classifier.scores(test.images), rtol=1e-3, atol=1e-3)  # type: ignore[union-attr]
