"""Batches are a function of seed and step, also when they are read ahead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flatclr.data.loading import BatchPlan, Loader, seeded_generator
from flatclr.data.opening import open_dataset
from flatclr.data.sources import FileImages
from flatclr.distributed import Ranks
from tests.support.shards import numbered_shards


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


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    shards=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    at_once=st.integers(1, 10),
    batch_size=st.integers(1, 4),
    epoch=st.integers(0, 3),
)
def test_an_epoch_by_shards_holds_every_sample_once_and_few_shards_at_a_time(
    shards: list[int], at_once: int, batch_size: int, epoch: int
) -> None:
    samples = sum(shards)
    plan = BatchPlan(samples, min(batch_size, samples), seed=3, shards=tuple(shards), shards_at_once=at_once)
    steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
    order = torch.cat([plan.indices(step) for step in steps]).tolist()
    assert len(order) == len(set(order)) == plan.steps_per_epoch * plan.batch_size
    assert set(order) <= set(range(samples))
    shard_of = [shard for shard, size in enumerate(shards) for _ in range(size)]
    seen = list(dict.fromkeys(shard_of[sample] for sample in order))
    for start in range(0, len(seen), at_once):  # a group of shards is read to its end before the next
        group = seen[start : start + at_once]
        places = [place for place, sample in enumerate(order) if shard_of[sample] in group]
        assert places == list(range(places[0], places[-1] + 1))


@pytest.mark.parametrize("at_once", [None, 3])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_read_every_image_of_the_shards_once_in_an_epoch_also_after_a_break_inside_a_shard(
    world: int, at_once: int | None, tmp_path: Path
) -> None:
    source = open_dataset(numbered_shards(tmp_path / "s", 5, 16), test_fraction=0).train
    assert isinstance(source, FileImages)
    assert source.shard_sizes == (16,) * 5
    plan = BatchPlan(80, 8, seed=1, shards=source.shard_sizes, shards_at_once=at_once)
    whole = BatchPlan(80, 8, seed=1, shards=source.shard_sizes, shards_at_once=at_once).indices

    def read(rank: int, first: int, last: int) -> list[int]:
        own, cpu = Ranks(rank, world).own_rows(8 // world), torch.device("cpu")
        loader = Loader(source, plan, own=own, device=cpu)
        return [number for _, (images,) in loader.steps(first, last) for number in images[:, 0, 0, 0].tolist()]

    by_rank = [read(rank, 0, 7) + read(rank, 7, 10) for rank in range(world)]  # 56 images: inside the fourth shard
    assert sorted(number for numbers in by_rank for number in numbers) == list(range(80))
    batches = [[n for numbers in by_rank for n in numbers[s * 8 // world : (s + 1) * 8 // world]] for s in range(10)]
    assert batches == [whole(step).tolist() for step in range(10)]  # whatever the number of ranks


def test_data_without_shards_cannot_go_by_shards() -> None:
    with pytest.raises(ValueError, match=r"shards_at_once must be for data in shards, got 2 for 10 samples"):
        BatchPlan(10, 2, seed=0, shards_at_once=2)


@pytest.mark.parametrize(("samples", "fits"), [(31, 16), (32, 32), (1, 1)])
def test_a_batch_larger_than_the_data_is_refused_with_one_that_fits(samples: int, fits: int) -> None:
    with pytest.raises(ValueError, match=rf"<= {samples}, got 33; .* say --batch-size {fits}, or add more"):
        BatchPlan(samples=samples, batch_size=33, seed=0)
