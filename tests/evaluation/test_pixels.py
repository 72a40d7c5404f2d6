from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flatclr.evaluation.pixels import NEAR, near_duplicate_rate, overlap_rate, pixel_rows


def counted(rows: torch.Tensor, others: torch.Tensor) -> list[list[bool]]:
    """Pair by pair in float64."""
    everything = torch.cat([rows, others]).double()
    typical = 2 * float((everything - everything.mean(0)).square().mean(0).sum())
    return [[float((a - b).square().sum()) <= NEAR * typical for b in others.double()] for a in rows.double()]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 12))
def test_rates_are_those_of_counting_pairs(seed: int, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, 6, generator=generator)
    copies = rows[torch.randint(0, n, (n,), generator=generator)] + 0.01 * torch.randn(n, 6, generator=generator)
    mixed = torch.cat([rows, copies[: n // 2]])
    near = counted(mixed, mixed)
    pairs = [near[i][j] for i in range(len(mixed)) for j in range(len(mixed)) if i != j]
    assert abs(near_duplicate_rate(mixed) - sum(pairs) / len(pairs)) < 1e-9
    others = torch.randn(n, 6, generator=generator) + 3
    expected = [any(row) for row in counted(copies, torch.cat([rows, others]))]
    assert abs(overlap_rate(copies, torch.cat([rows, others])) - sum(expected) / n) < 1e-6


def test_copies_with_the_noise_of_a_camera_are_near_and_other_images_are_not() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (50, 3, 32, 32), generator=generator, dtype=torch.uint8)
    smooth = torch.nn.functional.avg_pool2d(images.float(), 5, 1, 2)
    noisy = smooth + 0.5 * torch.randn(smooth.shape, generator=generator)
    assert overlap_rate(pixel_rows(noisy), pixel_rows(smooth)) == 1.0
    assert near_duplicate_rate(pixel_rows(smooth)) == 0.0


def test_small_images_keep_their_pixels() -> None:
    images = torch.arange(2 * 4, dtype=torch.uint8).reshape(2, 1, 2, 2)
    assert torch.equal(pixel_rows(images), images.flatten(1).float())


def test_one_image_has_no_duplicates() -> None:
    assert near_duplicate_rate(torch.ones(1, 4)) == 0.0
