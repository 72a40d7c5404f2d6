"""The primitive itself: values, per-anchor gradients, memory, precision of its sums."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flatclr
from flatclr import Phi
from flatclr.contrast import dense, relation
from flatclr.contrast.kernels import tiled_torch
from flatclr.contrast.route import LARGEST_DENSE
from tests.support import oracles
from tests.support.harness import Batch, every_pairing
from tests.support.memory import LargestTensor

CUBE = Phi("cube", value=lambda s: s**3, derivative=lambda s: 3 * s**2)


def weighted_stats(batch: Batch, inverse_temperature: Tensor, **options: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A different weight on every output of every anchor, and the gradients of their sum."""
    z_a, z_b, queue = batch.tensors()
    stats = flatclr.contrast_stats(
        z_a, z_b, inverse_temperature=inverse_temperature, negatives=queue, **batch.options(), **options
    )
    w_positive, w_negative = torch.randn(2, len(stats.positive), generator=torch.Generator().manual_seed(7)).double()
    total = (w_positive * stats.positive + w_negative * stats.negative_logsumexp).sum()
    return total.detach(), torch.autograd.grad(total, (z_a, z_b, inverse_temperature))


def test_stats_fields_agree_with_the_oracle() -> None:
    batch = Batch.random(5, 3, queue=4)
    z_a, z_b, queue = batch.tensors()
    stats = flatclr.contrast_stats(z_a, z_b, inverse_temperature=2.5, pairing="two_view", negatives=queue)
    rows = batch.rows(2.5)
    np.testing.assert_allclose(stats.positive.detach(), [row.positive for row in rows])
    np.testing.assert_allclose(stats.negative_logsumexp.detach(), [oracles.logsumexp(row.negatives) for row in rows])
    np.testing.assert_allclose(stats.info_nce.detach(), oracles.info_nce(rows))
    np.testing.assert_allclose(stats.ess, oracles.ess(rows))
    assert stats.negatives == 2 * 5 - 2 + 4
    assert stats.ceiling_nats == pytest.approx(math.log(13))
    assert stats.mi_nats.item() == pytest.approx(oracles.mi_nats(rows))


@every_pairing
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("queue", [0, 2])
def test_per_anchor_upstream_gradients_equal_finite_differences(
    pairing: str, normalize: bool, queue: int, route: str
) -> None:
    batch = Batch.random(3, 2, pairing=pairing, queue=queue)
    beta = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    _, (g_a, g_b, g_beta) = weighted_stats(batch, beta, normalize=normalize, route=route)

    def total(z_a: oracles.Array, z_b: oracles.Array, beta: oracles.Array) -> float:
        rows = Batch(z_a, z_b, batch.queue, pairing).rows(float(beta[0]), normalize=normalize)
        weights = torch.randn(2, len(rows), generator=torch.Generator().manual_seed(7)).double().numpy()
        positive = [row.positive for row in rows]
        return float(weights[0] @ positive + weights[1] @ [oracles.logsumexp(row.negatives) for row in rows])

    expected = oracles.finite_difference_gradient(total, batch.z_a, batch.z_b, np.array([1.7]))
    for got, want in zip((g_a, g_b, g_beta.reshape(1)), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@every_pairing
@pytest.mark.parametrize("source", [{}, {"queue": 4}, {"queue": 4, "in_batch": False}], ids=["batch", "both", "queue"])
def test_pairwise_mean_and_its_gradients_agree_with_the_oracle(
    pairing: str, source: dict[str, Any], route: str
) -> None:
    batch = Batch.random(4, 2, pairing=pairing, **source)
    z_a, z_b, queue = batch.tensors()
    beta = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    means = flatclr.pairwise_mean(
        z_a, z_b, phi=CUBE, inverse_temperature=beta, negatives=queue, normalize=False, route=route, **batch.options()
    )
    weights = torch.linspace(-1, 2, len(means), dtype=torch.float64)
    gradients = torch.autograd.grad(weights @ means, (z_a, z_b, beta))
    np.testing.assert_allclose(
        means.detach(), [np.mean(row.negatives**3) for row in batch.rows(0.7, normalize=False)], rtol=1e-12
    )

    def total(z_a: oracles.Array, z_b: oracles.Array, beta: oracles.Array) -> float:
        rows = Batch(z_a, z_b, batch.queue, pairing, batch.in_batch).rows(float(beta[0]), normalize=False)
        return float(weights.numpy() @ [np.mean(row.negatives**3) for row in rows])

    expected = oracles.finite_difference_gradient(total, batch.z_a, batch.z_b, np.array([0.7]))
    for got, want in zip((*gradients[:2], gradients[2].reshape(1)), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


CONSTANTS = {
    "float": lambda s: 3.0,
    "0-dim": lambda s: s.new_tensor(3.0),
    "expanded": lambda s: s.new_tensor(3.0).expand_as(s),
}


@pytest.mark.parametrize("derivative", CONSTANTS.values(), ids=CONSTANTS)
def test_a_constant_derivative_may_come_in_any_form(derivative: Any, route: str) -> None:
    z_a, z_b, _ = Batch.random(4, 3).tensors()
    line = Phi("line", value=lambda s: 3 * s, derivative=derivative)
    (got,) = torch.autograd.grad(flatclr.pairwise_mean(z_a, z_b, phi=line, route=route).sum(), z_a)
    full = Phi("line", value=lambda s: 3 * s, derivative=lambda s: torch.full_like(s, 3.0))
    (want,) = torch.autograd.grad(flatclr.pairwise_mean(z_a, z_b, phi=full, route=route).sum(), z_a)
    torch.testing.assert_close(got, want)
    assert want.norm() > 0


@every_pairing
@pytest.mark.parametrize("edge", [1, 2, 7, 64])
def test_the_size_of_a_tile_changes_nothing(pairing: str, edge: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch.random(9, 4, pairing=pairing, queue=5)
    beta = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    total, gradients = weighted_stats(batch, beta)
    monkeypatch.setattr(tiled_torch, "tile_edge", lambda device: edge)
    again, gradients_again = weighted_stats(batch, beta)
    torch.testing.assert_close(again, total, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients_again, gradients, rtol=1e-11, atol=1e-11)


@every_pairing
@pytest.mark.parametrize("draw", [None, 8])
def test_no_operation_makes_a_score_matrix(pairing: str, draw: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_torch, "tile_edge", lambda device: 128)
    n, d = 1024, 8
    z_a, z_b = (torch.randn(n, d, requires_grad=True) for _ in range(2))
    queue = torch.randn(n, d)
    if draw is not None:
        monkeypatch.setattr(relation, "ENTRIES_AT_ONCE", 128 * 128)
    with LargestTensor() as largest:
        stats = flatclr.contrast_stats(
            z_a,
            z_b,
            inverse_temperature=5.0,
            pairing=pairing,
            negatives=queue,
            negatives_per_anchor=draw,
            route="streamed",
        )
        stats.info_nce.mean().backward()
    biggest_input = 3 * n * d  # both views and the queue
    assert largest.elements <= max(128 * 128, 2 * biggest_input)
    assert largest.elements < n * n // 16


def test_a_kept_tile_is_never_larger_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []

    def refuse(batch: flatclr.PairSet, *_: Any) -> Any:
        called.append(batch.layout.samples)
        raise AssertionError("kept")

    monkeypatch.setattr(dense, "logsumexp_kept", refuse)
    n = math.isqrt(LARGEST_DENSE) // 2
    with pytest.raises(AssertionError, match="kept"):
        flatclr.contrast_stats(torch.randn(n, 4), torch.randn(n, 4), inverse_temperature=1.0)
    flatclr.contrast_stats(torch.randn(n + 2, 4), torch.randn(n + 2, 4), inverse_temperature=1.0)
    assert called == [n]


def test_sums_of_many_small_terms_keep_float32_accuracy(route: str) -> None:
    """A running sum in bfloat16 would stop growing long before three hundred terms."""
    z = torch.nn.functional.normalize(torch.randn(150, 4).double(), dim=1)
    exact = flatclr.contrast_stats(z, z, inverse_temperature=0.01, route=route)
    low = flatclr.contrast_stats(z.bfloat16(), z.bfloat16(), inverse_temperature=0.01, route=route)
    assert low.negative_logsumexp.dtype == torch.float32
    torch.testing.assert_close(low.negative_logsumexp.double(), exact.negative_logsumexp, rtol=2e-5, atol=0)


def test_autocast_does_not_lower_the_precision_of_the_sums(route: str) -> None:
    z_a, z_b = torch.randn(2, 8, 16).unbind()
    plain = flatclr.contrast_stats(z_a, z_b, inverse_temperature=20.0, route=route)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = flatclr.contrast_stats(z_a, z_b, inverse_temperature=20.0, route=route)
        drawn = flatclr.contrast_stats(z_a, z_b, inverse_temperature=20.0, negatives_per_anchor=14)
    torch.testing.assert_close(cast.negative_logsumexp, plain.negative_logsumexp, rtol=0, atol=0)
    torch.testing.assert_close(drawn.negative_logsumexp, plain.negative_logsumexp)


def test_float64_stays_float64() -> None:
    z = torch.randn(4, 3, dtype=torch.float64)
    stats = flatclr.contrast_stats(z, z, inverse_temperature=2.0)
    assert {stats.positive.dtype, stats.negative_logsumexp.dtype, stats.ess.dtype} == {torch.float64}


def test_stats_from_scores_agrees_with_the_embeddings_it_came_from() -> None:
    batch = Batch.random(6, 3, pairing="one_way")
    z_a, z_b, _ = batch.tensors()
    scores = 2 * torch.nn.functional.normalize(z_a) @ torch.nn.functional.normalize(z_b).T
    dense, streamed = (
        flatclr.stats_from_scores(scores),
        flatclr.contrast_stats(z_a, z_b, inverse_temperature=2.0, pairing="one_way"),
    )
    for name in ("positive", "negative_logsumexp", "ess"):
        torch.testing.assert_close(getattr(dense, name), getattr(streamed, name))
    torch.testing.assert_close(
        torch.autograd.grad(dense.info_nce.mean(), z_a)[0], torch.autograd.grad(streamed.info_nce.mean(), z_a)[0]
    )


def test_stats_from_wide_scores_count_the_extra_columns_as_negatives() -> None:
    scores = torch.randn(3, 7, dtype=torch.float64)
    stats = flatclr.stats_from_scores(scores)
    assert stats.negatives == 6
    row = oracles.Row(scores[1, 1].item(), np.delete(scores[1].numpy(), 1))
    assert stats.info_nce[1].item() == pytest.approx(oracles.info_nce([row])[0])
    assert stats.ess[1].item() == pytest.approx(oracles.ess([row])[0])


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    z = torch.randn(4, 3, requires_grad=True)
    loss = flatclr.InfoNCE()(z, z)
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(loss, z, create_graph=True)


def test_gauges_alone_cost_no_graph() -> None:
    z = torch.randn(4, 3, requires_grad=True)
    with torch.no_grad():
        stats = flatclr.contrast_stats(z, z, inverse_temperature=2.0)
    assert not stats.negative_logsumexp.requires_grad
    with torch.inference_mode():
        assert flatclr.FlatNCE()(z, z).isfinite()


def test_a_beta_changed_before_backward_is_noticed(route: str) -> None:
    z = torch.randn(4, 3, requires_grad=True)
    beta = torch.tensor(2.0)
    stats = flatclr.contrast_stats(z, z, inverse_temperature=beta, route=route)
    beta.mul_(5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stats.info_nce.mean().backward()


@pytest.mark.parametrize("draw", [None, 3])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_beta_of_one_entry_has_any_shape_and_type(draw: int | None, shape: tuple[int, ...]) -> None:
    z = torch.randn(4, 3)
    beta = torch.full(shape, 2.0, dtype=torch.float64)
    options = {"negatives_per_anchor": draw, "generator": torch.Generator().manual_seed(0)}
    stats = flatclr.contrast_stats(z, z, inverse_temperature=beta, **options)
    assert stats.negative_logsumexp.dtype == torch.float32
    options["generator"] = torch.Generator().manual_seed(0)
    torch.testing.assert_close(
        stats.info_nce, flatclr.contrast_stats(z, z, inverse_temperature=2.0, **options).info_nce
    )


@pytest.mark.parametrize("length", [1e-30, 1e-20, 1e20, 1e30])
def test_directions_survive_any_float32_length(length: float) -> None:
    z_a, z_b = torch.randn(2, 6, 4).unbind()
    long = (length * z_a).requires_grad_()
    loss = flatclr.InfoNCE(0.1)(long, z_b)
    torch.testing.assert_close(loss, flatclr.InfoNCE(0.1)(z_a, z_b), rtol=1e-5, atol=1e-5)
    assert torch.autograd.grad(loss, long)[0].isfinite().all()
    flatclr.InfoNCE(check_embeddings=True)(long, z_b)  # not zero rows


def test_the_hardest_negative_is_found_in_full_precision_under_autocast() -> None:
    z_a, z_b = torch.randn(2, 40, 8).unbind()
    z_b[1:] = z_b[0] + 1e-3 * torch.randn(39, 8)  # closer together than bfloat16 can tell
    plain = flatclr.PairSet.of(z_a, z_b, pairing="one_way").extreme_negative(1.0, hardest=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = flatclr.PairSet.of(z_a, z_b, pairing="one_way").extreme_negative(1.0, hardest=True)
    torch.testing.assert_close(cast, plain, rtol=0, atol=0)


@pytest.mark.parametrize("beta", [dense.LARGEST_BARE_SCORE, 1.01 * dense.LARGEST_BARE_SCORE])
@pytest.mark.parametrize("opposed", [False, True])
def test_bare_exponentials_keep_their_precision_up_to_their_limit(beta: float, opposed: bool) -> None:
    # negatives all at cosine -1 or +1: the smallest and largest exponentials there are
    z_a = torch.ones(2, 3) * torch.tensor([[1.0], [-1.0 if opposed else 1.0]])
    stats = flatclr.contrast_stats(z_a, z_a, inverse_temperature=beta)
    expected = math.log(2) + (-beta if opposed else beta)
    torch.testing.assert_close(stats.negative_logsumexp, torch.full((4,), expected), rtol=1e-6, atol=0)
    torch.testing.assert_close(stats.ess, torch.ones(4), rtol=1e-5, atol=0)


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("options", [{"route": "dense"}, {"route": "streamed"}, {"negatives_per_anchor": 3}], ids=str)
def test_a_phi_has_the_derivative_it_states_on_every_route(views: int, options: dict[str, Any]) -> None:
    """One that is not autograd's tells them apart; what the functions close over gets no gradient."""
    weight = torch.tensor(2.0, requires_grad=True)
    stated = Phi("stated", value=lambda s: weight * s * s, derivative=lambda s: torch.full_like(s, 0.5))
    line = Phi("line", value=lambda s: 0.5 * s, derivative=lambda s: torch.full_like(s, 0.5))
    found = []
    for phi in (stated, line):
        generator = torch.Generator().manual_seed(3) if "negatives_per_anchor" in options else None
        z = [torch.randn(5, 4, generator=torch.Generator().manual_seed(v)).requires_grad_() for v in range(views)]
        mean = flatclr.pairwise_mean(*z, phi=phi, generator=generator, **options)
        found.append(torch.autograd.grad(mean.sum(), z))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)
    constant = Phi("constant", value=lambda s: 1.0, derivative=lambda s: 0.0)
    z = [torch.randn(5, 4, requires_grad=True) for _ in range(views)]
    gradients = torch.autograd.grad(flatclr.pairwise_mean(*z, phi=constant, **options).sum(), z)
    assert all((g == 0).all() for g in gradients)
