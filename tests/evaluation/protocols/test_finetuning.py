"""Protocols that fine-tune: draws of their own, and what they learn."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import flatclr
from flatclr.data.sources import Dataset, ResidentImages
from flatclr.evaluation import features
from flatclr.evaluation.finetune import Recipe
from flatclr.evaluation.protocols import finetuning
from flatclr.evaluation.subjects import Subject
from tests.support.evaluation import CLASSES, pictures, small_data, small_encoder


def test_every_draw_from_scratch_starts_from_weights_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: dict[str, set[str]] = {"trained": set(), "random": set()}
    encoder = small_encoder()
    own = features.weights_digest(encoder)

    def watched(subject: Subject, *_: object, **__: object) -> Tensor:
        digest = features.weights_digest(subject.module)
        starts["trained" if digest == own else "random"].add(digest)
        return torch.zeros(90, 3)

    monkeypatch.setattr(finetuning, "finetune", watched)
    flatclr.evaluate(encoder, small_data(), "semi", draws=3, seed=5)
    assert len(starts["trained"]) == 1
    assert len(starts["random"]) == 3


def test_fine_tuning_learns_and_few_labels_beat_training_from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetuning, "Recipe", partial(Recipe, epochs=1, fewest_steps=100, batch_size=32))
    monkeypatch.setattr(finetuning, "LABEL_SHARES", (0.01,))
    encoder, head = small_encoder().train(), nn.Linear(16, 3)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=3e-3)
    images, labels = faded(600, seed=7)
    for start in range(0, 6000, 100):  # taught what stripes are, on other images
        part = slice(start % 600, start % 600 + 100)
        views = (images[part].float() / 255 - 0.5) / 0.5
        loss = nn.functional.cross_entropy(head(encoder(views)), labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sources = (ResidentImages(*faded(n, seed=n), CLASSES, name=str(n)) for n in (240, 300))
    found = flatclr.evaluate(encoder, Dataset("faded", *sources), ["finetune", "semi"], draws=3)
    scratch = found.random_beside(found["semi"])
    assert scratch is not None
    assert found["semi"].best.low > scratch.best.high
    whole = found.random_beside(found["finetune"])
    assert whole is not None
    assert whole.best.low > 0.5  # random weights, and yet far above a third: training taught them


def faded(samples: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """The same stripes, hard to see: a part of the contrast, in noise."""
    images, labels = pictures(samples, seed=seed)
    noise = torch.randint(0, 60, images.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return (0.6 * images.float()).to(torch.uint8) + noise, labels
