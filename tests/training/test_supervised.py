"""A run with labels, by the loop of all others."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flatclr
from flatclr.training.build import build
from flatclr.training.supervised import CrossEntropy
from flatclr.training.trainer import train
from tests.support.training import assert_same
from tests.support.training_worker import config, network_of


def test_loss_and_gradient_are_those_of_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    labels, index = torch.tensor([2, 0, 1, 1, 2]), torch.tensor([4, 1, 0])
    logits = torch.randn(3, 3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    objective = CrossEntropy(labels)
    loss = objective(*logits, index=index)
    loss.backward()
    assert logits.grad is not None
    total = 0.0
    for view in range(3):
        for row in range(3):
            scores, label = logits[view, row].tolist(), int(labels[index[row]])
            weights = [math.exp(score) for score in scores]
            total -= math.log(weights[label] / sum(weights)) / 9
            for c in range(3):
                expected = (weights[c] / sum(weights) - (c == label)) / 9
                assert abs(logits.grad[view, row, c].item() - expected) < 1e-12
    assert abs(loss.item() - total) < 1e-12
    with pytest.raises(ValueError, match="CrossEntropy must be told which samples these are, got no index="):
        objective(*logits.detach())


@pytest.fixture
def striped(tmp_path: Path) -> str:
    """Images of four classes, by a bright stripe."""
    labels = np.arange(160) % 4
    images = np.random.default_rng(0).integers(0, 200, (160, 12, 12), dtype=np.uint8)
    for label in range(4):
        images[labels == label, 3 * label : 3 * label + 3] += 55
    np.savez(tmp_path / "striped.npz", images=images, labels=labels)
    return str(tmp_path / "striped.npz")


def test_a_supervised_run_learns_the_classes_and_resumes_to_the_same_weights(striped: str, tmp_path: Path) -> None:
    own = {"data": striped, "objective": "supervised", "eval_samples": 160, "learning_rate": 0.01, "batch_size": 16}
    views = {"views": {"crop_scale": (0.9, 1.0)}}
    run = train(config(tmp_path / "run", 80, **own, **views)).path
    network = flatclr.load_network(run)
    images = torch.from_numpy(np.load(striped)["images"]).unsqueeze(1).float() / 255
    (logits,) = network(network.normalisation(images) if network.normalisation else images)
    labels = torch.arange(160) % 4
    assert logits.shape == (160, 4)
    assert (logits.argmax(1) == labels).float().mean() > 0.8
    ended = network_of(run)
    for file in (run / "checkpoint").glob("step-000000080.*"):
        file.unlink()
    train(flatclr.TrainConfig(), resume=run)
    assert_same(network_of(run), ended)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.1}, "temperature must be left out for supervised, got 0.1"),
        ({"pairing": "cross"}, "pairing must be left out for supervised, got 'cross'"),
        ({"queue": 8}, "queue must be 0 for supervised, got 8; it has no negatives"),
        ({"positives": "class"}, "positives must be 'views' for supervised, got 'class'"),
        ({"halves": "top-bottom"}, "objective 'supervised' must have images of two classes or more"),
    ],
)
def test_what_labels_have_no_use_for_is_refused(
    settings: dict[str, Any], message: str, striped: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        build(config(tmp_path / "run", 2, data=striped, objective="supervised", eval_samples=4).changed(**settings))


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((16, 12, 12), np.uint8))
    with pytest.raises(ValueError, match=r"objective 'supervised' must have images of two classes or more, .* got"):
        build(config(tmp_path / "run", 2, data=str(tmp_path / "images.npy"), objective="supervised", eval_samples=4))
