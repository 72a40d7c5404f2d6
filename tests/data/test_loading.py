"""Batches are a function of seed and step, also when they are read ahead."""

from __future__ import annotations

import torch
from torch import Tensor

from flatclr.data.loading import BatchPlan, Loader, seeded_generator


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
