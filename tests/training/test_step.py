"""A bad step changes nothing and is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from flatclr.optim import build_optimizer
from flatclr.training.build import build
from flatclr.training.instruments import evaluation_metrics
from tests.support.training_worker import config


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


def test_a_bad_streak_is_remembered_after_a_good_step(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 9))
    step, (images,) = next(parts.loader.steps(0, 1))
    broken = torch.full_like(images.float(), torch.nan)
    for batch in (broken, broken, images):
        parts.train_step((batch,), step)
    assert (int(parts.train_step.bad_in_a_row), int(parts.train_step.longest_bad)) == (0, 2)
