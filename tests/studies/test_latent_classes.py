"""Expectations of the latent-class model against loops over every draw, and what minimises them against theory."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flatclr.studies.latent_classes import (
    class_prior,
    classification_loss,
    collision_coverage_factor,
    contrastive_limit,
    contrastive_loss,
    coverage_draws,
    interval_widths,
    minimise,
    sample_classes,
    supervised_loss,
)

SKEWED = class_prior([5, 3, 1])


def unit_points(count: int, dimension: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, dimension, generator=generator, dtype=torch.float64), dim=1)


def by_loops(points: Tensor, prior: Tensor, classes: list[int], negatives: int) -> float:
    """Over every anchor, positive and ordered draw of negatives."""
    rows, n = points.tolist(), len(points)
    dot = [[math.fsum(a * b for a, b in zip(rows[i], rows[j], strict=True)) for j in range(n)] for i in range(n)]
    chance = [prior[c].item() / classes.count(c) for c in classes]
    total = 0.0
    for anchor, positive in product(range(n), repeat=2):
        if classes[anchor] != classes[positive]:
            continue
        for drawn in product(range(n), repeat=negatives):
            inside = 1 + sum(math.exp(dot[anchor][j] - dot[anchor][positive]) for j in drawn)
            weight = chance[anchor] / classes.count(classes[anchor]) * math.prod(chance[j] for j in drawn)
            total += weight * math.log(inside)
    return total


@pytest.mark.parametrize("method", ["integral", "counts"])
@pytest.mark.parametrize("negatives", [1, 2, 3])
def test_the_loss_is_that_of_every_draw(method: str, negatives: int) -> None:
    points, classes = unit_points(5, 3), [0, 0, 1, 2, 2]
    found = contrastive_loss(points, SKEWED, negatives=negatives, classes=torch.tensor(classes), method=method)
    assert found.item() == pytest.approx(by_loops(points, SKEWED, classes, negatives), abs=1e-13)


@given(
    frequencies=st.lists(st.floats(0.01, 1), min_size=2, max_size=4),
    negatives=st.integers(1, 20),
    seed=st.integers(0, 9),
)
@settings(deadline=None, max_examples=25)
def test_the_integral_equals_the_sum_over_class_counts(frequencies: list[float], negatives: int, seed: int) -> None:
    points, prior = unit_points(len(frequencies), 3, seed), class_prior(frequencies)
    one, other = (contrastive_loss(points, prior, negatives=negatives, method=m) for m in ("integral", "counts"))
    assert one.item() == pytest.approx(other.item(), abs=1e-12)


def test_the_gradient_is_that_of_finite_differences() -> None:
    points = unit_points(3, 3).requires_grad_()
    torch.autograd.gradcheck(lambda z: contrastive_loss(z, SKEWED, negatives=7), points)
    torch.autograd.gradcheck(lambda z: supervised_loss(z, SKEWED), points, atol=1e-5)


def test_the_mean_of_samples_is_the_exact_loss() -> None:
    points = unit_points(3, 3)
    draws = sample_classes(SKEWED, anchors=40_000, negatives=5, generator=torch.Generator().manual_seed(0))
    scores = points @ points.T
    losses = torch.log1p((scores[draws.anchors.unsqueeze(1), draws.negatives] - 1).exp().sum(1))
    error = losses.std() / math.sqrt(len(losses))
    assert abs(losses.mean() - contrastive_loss(points, SKEWED, negatives=5)) < 4 * error


def test_many_negatives_reach_the_limit() -> None:
    points = unit_points(3, 3)
    loss = contrastive_loss(points, SKEWED, negatives=1_000_000) - math.log(1_000_000)
    assert loss.item() == pytest.approx(contrastive_limit(points, SKEWED).item(), abs=1e-5)


@pytest.mark.parametrize("negatives", [1, 32, None])
def test_balanced_classes_become_the_simplex(negatives: int | None) -> None:
    minimum = minimise(class_prior([1] * 5), negatives=negatives, starts=2)
    assert minimum.converged
    ideal = torch.full((5, 5), -0.25, dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(minimum.gram, ideal, atol=1e-8, rtol=0)


def test_rare_classes_coincide_with_few_negatives_and_separate_with_many() -> None:
    prior = class_prior([0.9, 0.05, 0.05])
    few, many = (minimise(prior, negatives=k, starts=2) for k in (1, 256))
    assert few.converged
    assert many.converged
    assert few.gram[1, 2].item() == pytest.approx(1, abs=1e-8)
    assert many.gram[1, 2] < 0.95
    assert supervised_loss(many.points, prior) < supervised_loss(few.points, prior)


def test_no_classifier_of_unit_norm_is_better() -> None:
    points = unit_points(4, 4)
    prior = class_prior([4, 3, 2, 1])
    least = supervised_loss(points, prior)
    tried = [classification_loss(points, unit_points(4, 4, seed), prior) for seed in range(200)]
    near = [
        classification_loss(points, F.normalize(points + 0.3 * unit_points(4, 4, s), dim=1), prior) for s in range(200)
    ]
    assert least <= min(tried + near)


@given(
    frequencies=st.lists(st.floats(0.05, 1), min_size=2, max_size=5),
    negatives=st.integers(1, 64),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=30)
def test_both_older_bounds_hold_for_any_points(frequencies: list[float], negatives: int, seed: int) -> None:
    prior, points = class_prior(frequencies), unit_points(len(frequencies), 3, seed)
    loss = contrastive_loss(points, prior, negatives=negatives).item()
    mean = classification_loss(points, points, prior).item()
    lower, upper = interval_widths(prior, negatives)
    assert loss - lower - 1e-12 <= mean <= loss + upper + 1e-12
    assert mean <= collision_coverage_factor(prior, negatives) * loss


def test_draws_that_cover_equal_classes_are_those_of_the_coupon_collector() -> None:
    expected = 9 * sum(1 / j for j in range(1, 10))
    torch.testing.assert_close(coverage_draws(class_prior([1] * 10)), torch.full((10,), expected).double())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: class_prior([1]), "a prior must have at least 2 classes, got 1"),
        (lambda: class_prior([1, 0]), "a frequency of a class must be a finite number > 0, got 0; leave out"),
        (lambda: contrastive_loss(unit_points(3, 3), SKEWED, negatives=0), "negatives must be a whole number >= 1"),
        (lambda: contrastive_loss(unit_points(2, 3), SKEWED, negatives=1), "points must be of all 3 classes"),
        (lambda: contrastive_loss(unit_points(3, 3), SKEWED, negatives=1, method="count"), "did you mean 'counts'"),
        (
            lambda: contrastive_loss(unit_points(9, 3), class_prior([1] * 9), negatives=64, method="counts"),
            "take method='integral'",
        ),
    ],
)
def test_bad_input_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        call()  # type: ignore[operator]


def test_classes_all_but_absent_end_at_unit_vectors_and_say_so_if_these_are_no_minimum() -> None:
    found = minimise(class_prior([0.999999, 0.0000005, 0.0000005]), negatives=1, starts=1)
    torch.testing.assert_close(found.points.norm(dim=1), torch.ones(3, dtype=torch.float64))
    assert not found.converged
