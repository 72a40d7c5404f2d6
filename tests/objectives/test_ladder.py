"""The ladder: oracle, gradient, shapes, precision, layout, for every objective."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch

import flatclr
from tests.support import oracles
from tests.support.harness import CASES, PAIRINGS, Batch, Case, every_case, every_pairing, loss_and_gradients

SOURCES = {"batch": {}, "batch_and_queue": {"queue": 3}, "queue_only": {"queue": 3, "in_batch": False}}
# more arithmetic on the stats meets every source of negatives, not every pairing again
MEETING = {
    f"{source}-{pairing}-{case.name}": (case, pairing, SOURCES[source])
    for case in CASES
    for pairing in PAIRINGS
    for source in SOURCES
    if pairing == case.pairing or not case.of_stats
}
every_meeting = pytest.mark.parametrize(("case", "pairing", "source"), MEETING.values(), ids=MEETING)


@every_meeting
def test_value_equals_the_float64_oracle(case: Case, pairing: str, source: dict[str, Any], route: str) -> None:
    batch = Batch.random(4, 3, pairing=pairing, **source)
    loss, *_ = loss_and_gradients(case, batch, route=route)
    assert loss.item() == pytest.approx(case.value(batch), rel=1e-11, abs=1e-11)


@every_meeting
def test_gradient_equals_finite_differences_of_the_potential(
    case: Case, pairing: str, source: dict[str, Any], route: str
) -> None:
    batch = Batch.random(3, 2, pairing=pairing, seed=3, **source)
    _, *gradients = loss_and_gradients(case, batch, route=route)

    def potential(z_a: oracles.Array, z_b: oracles.Array) -> float:
        return case.potential(Batch(z_a, z_b, batch.queue, batch.pairing, batch.in_batch))

    expected = oracles.finite_difference_gradient(potential, batch.z_a, batch.z_b)
    for got, want in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6, atol=1e-7 * max(1, np.abs(want).max()))


SHAPES = [(pairs, d) for pairs in (2, 3) for d in (1, 3, 128)] + [(37, 3)]


@every_case
@pytest.mark.parametrize(("pairs", "d"), SHAPES)
def test_odd_shapes_agree_with_the_oracle_in_value_and_slope(case: Case, pairs: int, d: int, route: str) -> None:
    batch = Batch.random(pairs, d, pairing=case.pairing)
    loss, *gradients = loss_and_gradients(case, batch, route=route)
    assert loss.item() == pytest.approx(case.value(batch), rel=1e-10, abs=1e-10)
    if d == 1 and case.normalize:  # on the sphere of one dimension nothing can move
        assert all(g.abs().max() < 1e-12 for g in gradients)
        return
    rng = np.random.default_rng(1)
    directions, step = [rng.normal(size=(pairs, d)) for _ in range(2)], 1e-5

    def moved(by: float) -> float:
        z_a, z_b = (z + by * direction for z, direction in zip((batch.z_a, batch.z_b), directions, strict=True))
        return case.potential(Batch(z_a, z_b, None, case.pairing))

    slope = sum(float((g.numpy() * direction).sum()) for g, direction in zip(gradients, directions, strict=True))
    assert slope == pytest.approx((moved(step) - moved(-step)) / (2 * step), rel=1e-5, abs=1e-7)


@every_case
@pytest.mark.parametrize("d", [1, 128])
def test_a_large_odd_batch_is_the_same_kept_and_streamed(case: Case, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch.random(127, d, pairing=case.pairing)
    kept = loss_and_gradients(case, batch, route="dense")
    monkeypatch.setattr(flatclr.contrast.kernels.tiled_torch, "tile_edge", lambda device: 50)
    for streamed, want in zip(loss_and_gradients(case, batch, route="streamed"), kept, strict=True):
        torch.testing.assert_close(streamed, want, rtol=1e-9, atol=1e-11)


@every_case
@every_pairing
@pytest.mark.parametrize("d", [1, 3, 128])
def test_a_single_pair_is_contrasted_with_the_queue(case: Case, pairing: str, d: int) -> None:
    batch = Batch.random(1, d, pairing=pairing, queue=5)
    loss, *_ = loss_and_gradients(case, batch)
    assert loss.item() == pytest.approx(case.value(batch), rel=1e-11, abs=1e-11)


with_and_without_queue = pytest.mark.parametrize("queue", [0, 4])


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@with_and_without_queue
def test_lower_precision_accumulates_in_float32(case: Case, dtype: torch.dtype, queue: int, route: str) -> None:
    exact = Batch.random(8, 16, pairing=case.pairing, queue=queue)
    z_a, z_b, rows = (
        None if z is None else torch.tensor(z).to(dtype).double().numpy() for z in (exact.z_a, exact.z_b, exact.queue)
    )
    assert z_a is not None
    assert z_b is not None
    batch = Batch(z_a, z_b, rows, pairing=case.pairing)
    loss, *gradients = loss_and_gradients(case, batch, dtype, route=route)
    _, *expected = loss_and_gradients(case, batch, route=route)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(case.value(batch), rel=2e-5, abs=2e-5)
    tolerance = 4 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
    for got, want in zip(gradients, expected, strict=True):
        assert got.dtype == dtype
        assert (got.double() - want).norm() <= tolerance * want.norm()


@every_case
@with_and_without_queue
def test_non_contiguous_embeddings_give_the_same_numbers(case: Case, queue: int, route: str) -> None:
    batch = Batch.random(5, 4, pairing=case.pairing, queue=queue)
    loss, g_a, g_b = loss_and_gradients(case, batch, route=route)
    z_a, z_b = (torch.tensor(z.repeat(2, axis=1).T, requires_grad=True) for z in (batch.z_a, batch.z_b))
    rows = None if batch.queue is None else torch.tensor(batch.queue.repeat(2, axis=0))[::2]
    strided = case.objective(batch, route=route)(z_a[::2].T, z_b[::2].T, negatives=rows)
    s_a, s_b = torch.autograd.grad(strided, (z_a, z_b))
    torch.testing.assert_close(strided, loss, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(s_a[::2].T, g_a, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(s_b[::2].T, g_b, rtol=1e-12, atol=1e-12)


@every_case
def test_the_queue_receives_its_gradient(case: Case, route: str) -> None:
    batch = Batch.random(3, 2, pairing=case.pairing, queue=3, seed=1)
    z_a, z_b, queue = batch.tensors()
    assert queue is not None
    queue.requires_grad_()
    (got,) = torch.autograd.grad(case.objective(batch, route=route)(z_a, z_b, negatives=queue), queue)

    def potential(q: oracles.Array) -> float:
        return case.potential(Batch(batch.z_a, batch.z_b, q, batch.pairing))

    assert batch.queue is not None
    (want,) = oracles.finite_difference_gradient(potential, batch.queue)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6, atol=1e-7 * max(1, np.abs(want).max()))


@every_case
def test_a_detached_view_leaves_the_other_views_gradient_as_it_is(case: Case) -> None:
    batch = Batch.random(6, 4, pairing="one_way")
    _, g_a, _ = loss_and_gradients(case, batch)
    z_a, z_b, _ = batch.tensors()
    (alone,) = torch.autograd.grad(case.objective(batch)(z_a, z_b.detach()), z_a)
    torch.testing.assert_close(alone, g_a)


@every_case
def test_with_stats_returns_the_same_loss_and_detached_stats_of_the_batch(case: Case) -> None:
    batch = Batch.random(5, 3, pairing=case.pairing)
    z_a, z_b, _ = batch.tensors()
    objective = case.objective(batch)
    loss, stats = objective.with_stats(z_a, z_b)
    torch.testing.assert_close(loss, objective(z_a, z_b))
    assert not any(t.requires_grad for t in (stats.positive, stats.negative_logsumexp, stats.ess))
    beta = float(objective.scale())
    rows = batch.rows(beta, normalize=case.normalize)
    np.testing.assert_allclose(stats.ess.numpy(), oracles.ess(rows), rtol=1e-10)
    assert stats.negatives == len(rows[0].negatives)
    assert stats.mi_nats.item() == pytest.approx(oracles.mi_nats(rows), rel=1e-10)


@every_case
def test_loss_scaling_scales_the_gradient(case: Case) -> None:
    batch = Batch.random(4, 3, pairing=case.pairing)
    _, g_a, _ = loss_and_gradients(case, batch)
    z_a, z_b, _ = batch.tensors()
    (scaled,) = torch.autograd.grad(1024 * case.objective(batch)(z_a, z_b), z_a)
    torch.testing.assert_close(scaled, 1024 * g_a)


@pytest.mark.parametrize("case", [case for case in CASES if case.draws], ids=lambda case: case.name)
@pytest.mark.parametrize("in_batch", [True, False])
def test_drawn_negatives_reach_every_objective(case: Case, in_batch: bool) -> None:
    batch = Batch.random(5, 3, pairing=case.pairing, queue=4, in_batch=in_batch)
    z_a, z_b, queue = batch.tensors()
    everything = len(batch.rows(1.0)[0].negatives)
    full = case.objective(batch)(z_a, z_b, negatives=queue)
    drawn = case.objective(batch, negatives_per_anchor=everything)(z_a, z_b, negatives=queue)
    torch.testing.assert_close(drawn, full)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own tracer
@pytest.mark.parametrize("name", ["flat_nce"])  # every objective and route: test_operators, slow
def test_torch_compile_gives_the_same_loss_and_gradient(name: str, route: str) -> None:
    case = {case.name: case for case in CASES}[name]
    batch = Batch.random(5, 4, pairing=case.pairing)
    loss, g_a, g_b = loss_and_gradients(case, batch, route=route)
    z_a, z_b, _ = batch.tensors()
    compiled = torch.compile(case.objective(batch, route=route), backend="aot_eager")
    again = compiled(z_a, z_b)
    torch.testing.assert_close(again, loss)
    for got, want in zip(torch.autograd.grad(again, (z_a, z_b)), (g_a, g_b), strict=True):
        torch.testing.assert_close(got, want)


@every_case
def test_objectives_can_be_pickled_and_copied(case: Case) -> None:
    if case.name == "flo_module":  # its u is a class of the tests
        return
    batch = Batch.random(4, 3, pairing=case.pairing)
    z_a, z_b, _ = batch.tensors()
    objective = case.objective(batch)
    again = pickle.loads(pickle.dumps(objective))
    torch.testing.assert_close(again(z_a, z_b), objective(z_a, z_b))


@every_case
def test_backward_inside_autocast_keeps_its_precision(case: Case) -> None:
    batch = Batch.random(8, 16, pairing=case.pairing)
    z_a, z_b, _ = batch.tensors(torch.float32)
    objective = case.build(pairing=case.pairing)
    (want,) = torch.autograd.grad(objective(z_a, z_b), z_a)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (got,) = torch.autograd.grad(objective(z_a, z_b), z_a)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
