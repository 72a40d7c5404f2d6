"""Positives of the class: another sample, of the same class, each as probable."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flatclr.data import BatchPlan, ClassPositives, Loader, ResidentImages

CPU = torch.device("cpu")


@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=12), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=50)
def test_a_positive_is_another_sample_of_the_class(labels: list[int], seed: int) -> None:
    every = torch.tensor(labels + labels)  # so that none is alone
    index = torch.arange(len(every))
    found = ClassPositives(every).of(index, torch.rand(len(every), generator=torch.Generator().manual_seed(seed)))
    assert torch.equal(every[found], every)
    assert not (found == index).any()


def test_the_others_of_a_class_are_equally_probable() -> None:
    labels = torch.tensor([1, 0, 1, 1, 0, 1])
    draws = 4000
    uniforms = torch.rand(draws, generator=torch.Generator().manual_seed(0))
    found = ClassPositives(labels).of(torch.full((draws,), 2), uniforms)
    shares = torch.bincount(found, minlength=6) / draws
    error = (1 / 3 * 2 / 3 / draws) ** 0.5
    expected = torch.tensor([1, 0, 0, 1, 0, 1]) / 3
    assert (shares - expected).abs().max() < 4 * error


def test_the_largest_uniform_is_still_another_sample() -> None:
    almost_one = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0)).expand(3)
    assert ClassPositives(torch.zeros(3, dtype=torch.int64)).of(torch.arange(3), almost_one).tolist() == [2, 0, 1]


def test_a_class_of_one_sample_is_refused() -> None:
    with pytest.raises(ValueError, match=r"toys must have two samples of every class .* got one of class 1"):
        ClassPositives(torch.tensor([0, 1, 0]), name="toys")


def test_a_loader_brings_both_and_two_ranks_see_what_one_does() -> None:
    images = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1)
    labels = torch.arange(20) % 3
    source, plan, positives = ResidentImages(images, labels), BatchPlan(20, 8, seed=3), ClassPositives(labels)
    parts = [
        [batch for _, batch in Loader(source, plan, own=own, device=CPU, positives=positives).steps(1, 4)]
        for own in (slice(0, 8), slice(0, 4), slice(4, 8))
    ]
    whole, first, second = parts
    for step, (anchors, others) in enumerate(whole):
        assert torch.equal(labels[anchors.flatten().long()], labels[others.flatten().long()])
        assert not (anchors == others).any()
        assert torch.equal(others, torch.cat([first[step][1], second[step][1]]))
    assert len({tuple(others.flatten().tolist()) for _, others in whole}) == 3
