"""Gauges of geometry, each against its definition and a case with a known answer."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import special

import flatclr
from flatclr import diagnostics
from tests.support import oracles


def uniform_value_on_sphere(dimension: int, t: float = 2.0) -> float:
    """log E exp(-t ||x - y||^2) = -2t + log 0F1(d/2, t^2) for uniform points of S^(d-1)."""
    return -2 * t + math.log(special.hyp0f1(dimension / 2, t * t))


@pytest.mark.parametrize(("dimension", "printed"), [(2, -1.575), (128, -3.938)])
def test_uniform_points_have_the_optimal_uniformity(dimension: int, printed: float) -> None:
    assert uniform_value_on_sphere(dimension) == pytest.approx(printed, abs=2e-3)
    z = torch.randn(3000, dimension, dtype=torch.float64)
    assert diagnostics.uniformity(z).item() == pytest.approx(printed, abs=0.02)


def test_uniformity_and_alignment_agree_with_the_oracle() -> None:
    z_a, z_b = torch.randn(2, 12, 5, dtype=torch.float64).unbind()
    both = (diagnostics.uniformity(z_a, 1.5) + diagnostics.uniformity(z_b, 1.5)) / 2
    assert both.item() == pytest.approx(oracles.uniformity_within(z_a.numpy(), z_b.numpy(), 1.5))
    for alpha in (1.0, 2.0, 3.0):
        expected = np.mean(oracles.alignment(z_a.numpy(), z_b.numpy(), alpha))
        assert diagnostics.alignment(z_a, z_b, alpha).item() == pytest.approx(expected)


def test_many_negatives_bring_info_nce_to_its_alignment_uniformity_limit() -> None:
    """loss - log M -> -beta E[x.y] + E_x log E_x' exp(beta x.x')"""
    generator = torch.Generator().manual_seed(0)
    beta, m = 4.0, 40_000
    z_a = torch.nn.functional.normalize(torch.randn(16, 6, generator=generator, dtype=torch.float64))
    z_b = torch.nn.functional.normalize(z_a + 0.3 * torch.randn(16, 6, generator=generator, dtype=torch.float64))
    queue = torch.randn(m, 6, generator=generator, dtype=torch.float64)
    objective = flatclr.InfoNCE(1 / beta, pairing="one_way", in_batch_negatives=False)
    loss = objective(z_a, z_b, negatives=queue).item()
    log_potential = math.log(special.hyp0f1(3, beta**2 / 4))  # the same for every x: the queue is uniform
    limit = -beta * (z_a * z_b).sum(1).mean().item() + log_potential
    assert loss - math.log(m) == pytest.approx(limit, abs=0.02)


def test_effective_rank_counts_equal_directions() -> None:
    for rank in (1, 3, 7):
        basis = torch.linalg.qr(torch.randn(10, 10, dtype=torch.float64))[0][:, :rank]
        signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=rank)), dtype=torch.float64)
        assert diagnostics.effective_rank(signs @ basis.T).item() == pytest.approx(rank)


def test_effective_rank_is_the_exponential_of_the_spectral_entropy_after_centring() -> None:
    features = torch.randn(20, 6, dtype=torch.float64) + 100
    singular = np.linalg.svd(features.numpy() - features.numpy().mean(0), compute_uv=False)
    p = singular / singular.sum()
    assert diagnostics.effective_rank(features).item() == pytest.approx(math.exp(-(p * np.log(p)).sum()))
    assert diagnostics.effective_rank(torch.ones(5, 4)).item() == pytest.approx(1)  # collapsed


@pytest.mark.parametrize("pairing", ["two_view", "cross", "one_way", "within"])
@pytest.mark.parametrize("queue", [0, 5])
def test_collision_rate_counts_pairs_of_one_class(pairing: str, queue: int) -> None:
    rng = np.random.default_rng(0)
    labels, queue_labels = rng.integers(0, 3, 8), rng.integers(0, 4, queue)
    collisions = [
        (queue_labels[m] if view == "queue" else labels[m]) == labels[i]
        for (_, i), _, negatives in oracles.contrasts(8, pairing, queue)
        for view, m in negatives
    ]
    got = diagnostics.collision_rate(
        torch.tensor(labels), torch.tensor(queue_labels) if queue else None, pairing=pairing
    )
    assert got.item() == pytest.approx(np.mean(collisions))


def simplex(classes: int) -> torch.Tensor:
    return torch.eye(classes, dtype=torch.float64) - 1 / classes


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_simplex_has_distance_zero_and_others_their_frobenius_distance(classes: int) -> None:
    labels = torch.arange(classes).repeat(4)
    features = simplex(classes)[labels] * torch.rand(len(labels), 1, dtype=torch.float64).add(0.1)
    assert diagnostics.simplex_etf_distance(features, labels).item() == pytest.approx(0, abs=1e-12)
    assert diagnostics.within_class_variance(features, labels).item() == pytest.approx(0, abs=1e-12)
    orthogonal = diagnostics.simplex_etf_distance(torch.eye(classes, dtype=torch.float64), torch.arange(classes)).item()
    off = classes * (classes - 1) / (classes - 1) ** 2
    assert orthogonal == pytest.approx(math.sqrt(off / (classes + off)))


def test_the_minimiser_of_the_k_negative_loss_is_the_simplex_for_every_k() -> None:
    """Latent classes that coincide on the sphere: gradient descent on free class directions finds the simplex ETF."""
    classes = 4
    for k in (1, 2, 6):
        directions = torch.randn(
            classes, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(k)
        ).requires_grad_()
        optimizer = torch.optim.Adam([directions], lr=0.05)
        # the exact expectation over k negatives drawn from balanced classes
        draws = torch.tensor(list(itertools.product(range(classes), repeat=k)))
        for _ in range(400):
            unit = torch.nn.functional.normalize(directions)
            gram = unit @ unit.T
            v = gram.diagonal()[:, None, None] - gram[:, draws]
            loss = torch.log1p((-v).exp().sum(-1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert diagnostics.simplex_etf_distance(directions.detach(), torch.arange(classes)).item() < 1e-3


def test_labels_that_are_not_class_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match=r"labels must be a one-dimensional tensor of class numbers, got torch.float32"):
        diagnostics.collision_rate(torch.randn(3))
    with pytest.raises(ValueError, match="class numbers >= 0"):
        diagnostics.collision_rate(torch.tensor([-1, 0]))
    with pytest.raises(ValueError, match="one per row of features, got 3 for 2 rows"):
        diagnostics.simplex_etf_distance(torch.eye(2), torch.arange(3))
    with pytest.raises(ValueError, match="at least 2 classes, got 1"):
        diagnostics.simplex_etf_distance(torch.eye(2), torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_effective_rank_refuses_features_that_are_not_finite(value: float) -> None:
    features = torch.ones(6, 3)
    features[2, 1] = value
    with pytest.raises(ValueError, match="features must be finite, got NaN or Inf in 1 of 6 rows, first in row 2"):
        diagnostics.effective_rank(features)


def test_the_spread_of_directions_is_that_of_the_formula_and_one_on_an_even_sphere() -> None:
    z = np.random.default_rng(0).normal(size=(30, 7)) + 1
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    expected = math.sqrt(7) * np.sqrt(np.mean((unit - unit.mean(0)) ** 2, axis=0)).mean()
    assert diagnostics.embedding_std(torch.as_tensor(3 * z)).item() == pytest.approx(expected)
    even = torch.randn(4000, 32, generator=torch.Generator().manual_seed(0))
    assert diagnostics.embedding_std(even).item() == pytest.approx(1, abs=0.01)
    assert diagnostics.embedding_std(torch.ones(5, 4)).item() == 0
