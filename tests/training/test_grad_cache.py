"""Micro-batches give the gradient and the running statistics of the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flatclr.checkpoint import load_checkpoint
from flatclr.models.statistics import one_update_of_running_statistics
from flatclr.training.build import build, what_to_know
from flatclr.training.events import Event, Warned
from flatclr.training.trainer import train
from tests.support.training import gradients
from tests.support.training_worker import config


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


def test_a_momentum_encoder_and_a_queue_work_with_micro_batches(tmp_path: Path) -> None:
    moco = {"objective": "infonce", "pairing": "one_way", "momentum": 0.9, "queue": 16, "temperature": 0.2}
    whole, cached = (gradients(build(config(tmp_path, 2, **moco, micro_batch=m))) for m in (None, 3))
    for name in whole:
        torch.testing.assert_close(cached[name], whole[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("micro_batch", "warned"), [(4, True), (8, False), (16, False)])
def test_only_a_batch_that_is_cut_is_said_to_be_normalised_in_parts(
    micro_batch: int, warned: bool, tmp_path: Path
) -> None:
    settings = {"micro_batch": micro_batch, "encoder_options": {"norm": "batch", "width": 8}}
    said = list(what_to_know(build(config(tmp_path, 2, **settings))))
    assert any("goes by micro-batches" in message for message in said) == warned
