"""Parameters of views: reproducible, independent of each other, and distributed as stated."""

import math
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flatclr.data.views import ViewConfig, ViewParameters, apply_views, draw_views
from tests.support.views import EVERYTHING, drawn, photo


# draws
def test_equal_seeds_draw_equal_views_and_others_do_not() -> None:
    first, again, other = (drawn(EVERYTHING, 16, seed=seed).values_NP for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert ((first - other).abs() > 1e-3).any(0).all()


def test_two_views_drawn_in_turn_differ() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (draw_views(EVERYTHING, 16, height=32, width=32, generator=generator).values_NP for _ in range(2))
    assert ((a - b).abs() > 1e-3).any(0).all()


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ranks_shares_together_are_the_global_batch(ranks: int) -> None:
    images = photo(16, height=32, width=32)
    whole = drawn(EVERYTHING, 16)
    share = 16 // ranks
    parts = [slice(rank * share, (rank + 1) * share) for rank in range(ranks)]
    assert torch.equal(torch.cat([drawn(EVERYTHING, 16).rows(part).values_NP for part in parts]), whole.values_NP)
    together = torch.cat([apply_views(images[part], whole.rows(part), EVERYTHING) for part in parts])
    torch.testing.assert_close(together, apply_views(images, whole, EVERYTHING), atol=1e-5, rtol=0)


def test_rows_take_slices_lists_and_index_tensors() -> None:
    whole = drawn(EVERYTHING, 8)
    assert torch.equal(whole.rows(slice(6, None)).boxes, whole.boxes[6:])
    for index in ([5, 0, 5], torch.tensor([5, 0, 5])):
        part = whole.rows(index)
        assert len(part) == 3
        assert torch.equal(part.flip, torch.stack([whole.flip[5], whole.flip[0], whole.flip[5]]))
        assert (part.height, part.width) == (32, 32)


def test_the_first_rows_do_not_depend_on_how_many_follow() -> None:
    assert torch.equal(drawn(EVERYTHING, 3).values_NP, drawn(EVERYTHING, 100).values_NP[:3])


def test_changing_one_operation_leaves_the_draws_of_the_others_alone() -> None:
    changed = replace(EVERYTHING, flip_probability=0.0, crop_scale=(0.5, 0.6), blur_probability=0.0)
    before, after = drawn(EVERYTHING, 64), drawn(changed, 64)
    for name in ("brightness", "contrast", "saturation", "hue", "grayscale", "solarize"):
        assert torch.equal(getattr(before, name), getattr(after, name))
    assert not after.flip.any()
    assert (after.blur_sigma == 0).all()


def test_columns_are_the_properties_of_the_same_name() -> None:
    p = drawn(EVERYTHING, 4)
    assert p.values_NP.shape == (4, len(ViewParameters.COLUMNS))
    assert torch.equal(p.boxes, p.values_NP[:, :4])
    for column, name in enumerate(ViewParameters.COLUMNS[4:], start=4):
        assert torch.equal(getattr(p, name).float(), p.values_NP[:, column])


MANY = 20_000


def assert_rate(flags: Tensor, probability: float) -> None:
    error = math.sqrt(probability * (1 - probability) / len(flags))
    assert abs(flags.double().mean().item() - probability) <= 4 * error


def assert_uniform(values: Tensor, low: float, high: float) -> None:
    """Range, mean and variance of a uniform distribution, within four standard errors."""
    assert low - 1e-5 <= values.min() < low + 0.02 * (high - low)
    assert high - 0.02 * (high - low) < values.max() <= high + 1e-5
    scaled = (values.double() - low) / (high - low)
    assert abs(scaled.mean().item() - 1 / 2) < 4 * math.sqrt(1 / 12 / len(values))
    assert abs((scaled - 1 / 2).square().mean().item() - 1 / 12) < 4 * math.sqrt(1 / 180 / len(values))


def test_operations_happen_at_their_rates_with_parameters_uniform_in_their_ranges() -> None:
    config = replace(EVERYTHING, brightness=1.5, flip_probability=0.3)
    p = drawn(config, MANY)
    jittered, blurred = p.hue != 0, p.blur_sigma > 0
    assert_rate(p.flip, 0.3)
    assert_rate(jittered, 0.8)
    assert_rate(p.grayscale, 0.2)
    assert_rate(blurred, 0.5)
    assert_rate(p.solarize, 0.3)
    assert_uniform(p.brightness[jittered], 0.0, 2.5)
    assert_uniform(p.contrast[jittered], 0.6, 1.4)
    assert_uniform(p.saturation[jittered], 0.6, 1.4)
    assert_uniform(p.hue[jittered], -0.5, 0.5)
    assert_uniform(p.blur_sigma[blurred], 0.1, 2.0)
    for name in ("brightness", "contrast", "saturation"):
        assert (getattr(p, name)[~jittered] == 1).all()


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_probability_0_is_never_and_1_is_always(probability: float) -> None:
    p = drawn(ViewConfig(flip_probability=probability, jitter_probability=probability), MANY)
    assert (p.flip == bool(probability)).all()
    assert ((p.hue != 0) == bool(probability)).float().mean() > 0.999  # a drawn shift may be 0


@pytest.mark.parametrize(("height", "width"), [(32, 32), (40, 24), (20, 31)])
def test_crops_stay_in_the_image_and_in_the_ranges_of_area_and_ratio(height: int, width: int) -> None:
    top, left, tall, wide = drawn(ViewConfig(), MANY, height=height, width=width).boxes.double().unbind(1)
    assert top.min() >= 0
    assert left.min() >= 0
    assert (top + tall).max() <= height + 1e-4
    assert (left + wide).max() <= width + 1e-4
    area, ratio = tall * wide / (height * width), wide / tall
    assert 0.2 - 1e-5 <= area.min() < 0.21
    largest = min(1.0, width / height / (3 / 4), height / width * (4 / 3))
    assert 0.95 * largest < area.max() <= largest + 1e-5
    assert 3 / 4 - 1e-5 <= ratio.min() < 0.76
    assert 1.32 < ratio.max() <= 4 / 3 + 1e-5
    roomy = (height - tall) > 1
    assert_uniform((top / (height - tall))[roomy], 0.0, 1.0)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (40, 24)])
def test_crops_have_the_distribution_of_the_rejection_loop(height: int, width: int) -> None:
    rng = random.Random(0)
    accepted = []
    while len(accepted) < MANY:
        area = height * width * rng.uniform(0.2, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        if math.sqrt(area * ratio) <= width and math.sqrt(area / ratio) <= height:
            accepted.append((area / (height * width), math.log(ratio)))
    _, _, tall, wide = drawn(ViewConfig(), MANY, height=height, width=width).boxes.double().unbind(1)
    mine = torch.stack([tall * wide / (height * width), (wide / tall).log()], 1)
    theirs = torch.tensor(accepted, dtype=torch.float64)
    for moment in (1, 2):
        a, b = mine**moment, theirs**moment
        error = ((a.var(0) + b.var(0)) / MANY).sqrt()
        assert ((a.mean(0) - b.mean(0)).abs() < 4 * error).all()


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [(8, 64, (0, 32 - 16 / 3, 8, 32 / 3)), (64, 8, (32 - 16 / 3, 0, 32 / 3, 8)), (31, 32, (0, 0, 31, 32))],
)
def test_an_image_no_proposal_fits_gives_its_largest_centred_box(
    height: int, width: int, box: tuple[float, ...]
) -> None:
    config = ViewConfig(crop_scale=(0.9999, 1.0))
    boxes = drawn(config, 64, height=height, width=width).boxes
    torch.testing.assert_close(boxes.median(0).values, torch.tensor(box, dtype=torch.float32))
