"""The ladder: oracle, gradient, shapes, precision, layout, for every objective."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.objectives.nce import flat_nce, info_nce
from tests.support import oracles
from tests.support.harness import CASES, PAIRINGS, Batch, Case

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_pairing = pytest.mark.parametrize("pairing", PAIRINGS)
SOURCES = {"batch": {}, "batch_and_queue": {"queue": 3}, "queue_only": {"queue": 3, "in_batch": False}}
every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


def loss_and_gradients(case: Case, batch: Batch, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    z_a, z_b, queue = batch.tensors(dtype)
    loss = case.objective(batch)(z_a, z_b, negatives=queue)
    g_a, g_b = torch.autograd.grad(loss, (z_a, z_b))
    return loss.detach(), g_a, g_b


@every_case
@every_pairing
@every_source
@pytest.mark.usefixtures("way")
def test_value_equals_the_float64_oracle(case: Case, pairing: str, source: dict[str, Any]) -> None:
    batch = Batch.random(4, 3, pairing=pairing, **source)
    loss, *_ = loss_and_gradients(case, batch)
    assert loss.item() == pytest.approx(case.value(batch), rel=1e-11, abs=1e-11)


@every_case
@every_pairing
@every_source
@pytest.mark.usefixtures("way")
def test_gradient_equals_finite_differences_of_the_potential(case: Case, pairing: str, source: dict[str, Any]) -> None:
    batch = Batch.random(3, 2, pairing=pairing, seed=3, **source)
    _, *gradients = loss_and_gradients(case, batch)

    def potential(z_a: oracles.Array, z_b: oracles.Array) -> float:
        return case.potential(Batch(z_a, z_b, batch.queue, batch.pairing, batch.in_batch))

    expected = oracles.finite_difference_gradient(potential, batch.z_a, batch.z_b)
    for got, want in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6, atol=1e-7 * max(1, np.abs(want).max()))


SHAPES = [(pairs, d) for pairs in (2, 3) for d in (1, 3, 128)] + [(127, 3)]


@every_case
@pytest.mark.parametrize(("pairs", "d"), SHAPES)
@pytest.mark.usefixtures("way")
def test_odd_shapes_agree_with_the_oracle_in_value_and_slope(case: Case, pairs: int, d: int) -> None:
    batch = Batch.random(pairs, d, pairing=case.pairing)
    loss, *gradients = loss_and_gradients(case, batch)
    assert loss.item() == pytest.approx(case.value(batch), rel=1e-10, abs=1e-10)
    if d == 1 and case.name != "rpc":  # on the sphere of one dimension nothing can move
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
    kept = loss_and_gradients(case, batch)
    monkeypatch.setattr(flatclr.contrast.route, "LARGEST_DENSE", 0)
    monkeypatch.setattr(flatclr.contrast.kernels.tiled_torch, "tile_edge", lambda device: 50)
    for streamed, want in zip(loss_and_gradients(case, batch), kept, strict=True):
        torch.testing.assert_close(streamed, want, rtol=1e-9, atol=1e-11)


@every_case
@every_pairing
@pytest.mark.parametrize("d", [1, 3, 128])
def test_a_single_pair_is_contrasted_with_the_queue(case: Case, pairing: str, d: int) -> None:
    batch = Batch.random(1, d, pairing=pairing, queue=5)
    loss, *_ = loss_and_gradients(case, batch)
    assert loss.item() == pytest.approx(case.value(batch), rel=1e-11, abs=1e-11)


with_and_without_queue = pytest.mark.parametrize("queue", [0, 4])  # only without one the tile is kept


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@with_and_without_queue
@pytest.mark.usefixtures("way")
def test_lower_precision_accumulates_in_float32(case: Case, dtype: torch.dtype, queue: int) -> None:
    exact = Batch.random(8, 16, pairing=case.pairing, queue=queue)
    z_a, z_b, rows = (
        None if z is None else torch.tensor(z).to(dtype).double().numpy() for z in (exact.z_a, exact.z_b, exact.queue)
    )
    assert z_a is not None
    assert z_b is not None
    batch = Batch(z_a, z_b, rows, pairing=case.pairing)
    loss, *gradients = loss_and_gradients(case, batch, dtype)
    _, *expected = loss_and_gradients(case, batch)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(case.value(batch), rel=2e-5, abs=2e-5)
    tolerance = 4 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
    for got, want in zip(gradients, expected, strict=True):
        assert got.dtype == dtype
        assert (got.double() - want).norm() <= tolerance * want.norm()


@every_case
@with_and_without_queue
@pytest.mark.usefixtures("way")
def test_non_contiguous_embeddings_give_the_same_numbers(case: Case, queue: int) -> None:
    batch = Batch.random(5, 4, pairing=case.pairing, queue=queue)
    loss, g_a, g_b = loss_and_gradients(case, batch)
    z_a, z_b = (torch.tensor(z.repeat(2, axis=1).T, requires_grad=True) for z in (batch.z_a, batch.z_b))
    rows = None if batch.queue is None else torch.tensor(batch.queue.repeat(2, axis=0))[::2]
    strided = case.objective(batch)(z_a[::2].T, z_b[::2].T, negatives=rows)
    s_a, s_b = torch.autograd.grad(strided, (z_a, z_b))
    torch.testing.assert_close(strided, loss, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(s_a[::2].T, g_a, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(s_b[::2].T, g_b, rtol=1e-12, atol=1e-12)


@every_case
@pytest.mark.usefixtures("way")
def test_the_queue_receives_its_gradient(case: Case) -> None:
    batch = Batch.random(3, 2, pairing=case.pairing, queue=3, seed=1)
    z_a, z_b, queue = batch.tensors()
    assert queue is not None
    queue.requires_grad_()
    (got,) = torch.autograd.grad(case.objective(batch)(z_a, z_b, negatives=queue), queue)

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
    rows = batch.rows(beta, normalize=case.name != "rpc")
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


@every_pairing
def test_flat_nce_gradient_equals_the_importance_weighted_form(pairing: str) -> None:
    batch = Batch.random(6, 4, pairing=pairing, queue=3)
    unit = Batch(oracles.normalized(batch.z_a), oracles.normalized(batch.z_b), batch.queue, pairing)
    z_a, z_b, queue = unit.tensors()
    loss = flatclr.FlatNCE(0.2, pairing=pairing)(z_a, z_b, negatives=queue)
    got = torch.autograd.grad(loss, (z_a, z_b))
    for gradient, want, z in zip(
        got, oracles.flat_nce_gradient(unit.z_a, unit.z_b, 5.0, pairing, unit.queue), (unit.z_a, unit.z_b), strict=True
    ):
        tangent = want - z * (z * want).sum(1, keepdims=True)  # the part along the sphere
        np.testing.assert_allclose(gradient.numpy(), tangent, rtol=1e-10, atol=1e-12)


def test_flat_nce_weights_do_not_depend_on_the_positive() -> None:
    scores = torch.randn(4, 9, dtype=torch.float64)
    for shift in (0.0, 50.0):
        moved = (scores + shift * torch.eye(4, 9)).requires_grad_()
        (gradient,) = torch.autograd.grad(flat_nce(flatclr.stats_from_scores(moved)).sum(), moved)
        negatives = scores.clone().fill_diagonal_(-torch.inf).softmax(1)
        torch.testing.assert_close(gradient, negatives - torch.eye(4, 9))


def test_info_nce_starves_when_the_positive_wins_and_flat_nce_does_not() -> None:
    scores = (30 * torch.eye(4, 8, dtype=torch.float64)).requires_grad_()
    stats = flatclr.stats_from_scores(scores)
    (starved,) = torch.autograd.grad(info_nce(stats).mean(), scores, retain_graph=True)
    (fed,) = torch.autograd.grad(flat_nce(stats).mean(), scores)
    assert starved.norm() < 1e-11
    assert fed.norm() > 0.5


@every_pairing
@pytest.mark.usefixtures("way")
def test_learned_temperature_gets_the_gradient_of_the_oracle(pairing: str) -> None:
    batch = Batch.random(4, 3, pairing=pairing, queue=2)
    z_a, z_b, queue = batch.tensors()
    for objective, oracle in (
        (flatclr.InfoNCE, oracles.info_nce),
        (flatclr.DV, oracles.dv_loss),
        (flatclr.NWJ, oracles.nwj_loss),
    ):
        module = objective(0.5, learn_temperature=True, pairing=pairing).double()
        for negatives, queue_rows in ((queue, batch.queue), (None, None)):
            (parameter,) = module.parameters()
            (got,) = torch.autograd.grad(module(z_a, z_b, negatives=negatives), parameter)
            with_queue = Batch(batch.z_a, batch.z_b, queue_rows, pairing)
            (want,) = oracles.finite_difference_gradient(
                lambda log_beta, b=with_queue, f=oracle: float(np.mean(f(b.rows(math.exp(log_beta[0]))))),
                np.array([math.log(2.0)]),
            )
            assert got.item() == pytest.approx(want[0], rel=1e-6)


def test_learned_temperature_learns() -> None:
    torch.manual_seed(1)
    z = torch.randn(64, 8)
    objective = flatclr.InfoNCE(1.0, learn_temperature=True)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.1)
    before = objective(z, z + 0.1 * torch.randn(64, 8)).item()
    for _ in range(50):
        optimizer.zero_grad()
        loss = objective(z, z + 0.1 * torch.randn(64, 8))
        loss.backward()
        optimizer.step()
    assert loss.item() < before / 2
    assert objective.scale().item() > 2


def test_holder_gamma_one_is_flat_nce() -> None:
    batch = Batch.random(6, 4)
    cases = {case.name: case for case in CASES}
    for got, want in zip(
        loss_and_gradients(cases["holder_1"], batch), loss_and_gradients(cases["flat_nce"], batch), strict=True
    ):
        torch.testing.assert_close(got, want)


def test_holder_limits_are_approached_by_large_and_small_gamma() -> None:
    batch = Batch.random(6, 4)
    z_a, z_b, _ = batch.tensors()

    def gradient(gamma: float) -> Tensor:
        return torch.autograd.grad(flatclr.HolderFlatNCE(0.3, gamma=gamma)(z_a, z_b), z_a)[0]

    for near, limit in ((1e-6, 0.0), (2000.0, math.inf), (-2000.0, -math.inf)):
        torch.testing.assert_close(gradient(near), gradient(limit), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [flatclr.InfoNCE, flatclr.FlatNCE, flatclr.HolderFlatNCE])
def test_all_negatives_drawn_is_the_same_as_no_draw(kind: type[flatclr.Objective]) -> None:
    batch = Batch.random(5, 3, queue=4)
    z_a, z_b, queue = batch.tensors()
    full = kind(0.3)(z_a, z_b, negatives=queue)
    drawn = kind(0.3, negatives_per_anchor=12)(z_a, z_b, negatives=queue)
    torch.testing.assert_close(drawn, full)
    for got, want in zip(torch.autograd.grad(drawn, (z_a, z_b)), torch.autograd.grad(full, (z_a, z_b)), strict=True):
        torch.testing.assert_close(got, want)


@every_case
@pytest.mark.parametrize("in_batch", [True, False])
def test_drawn_negatives_reach_every_objective(case: Case, in_batch: bool) -> None:
    batch = Batch.random(5, 3, pairing=case.pairing, queue=4, in_batch=in_batch)
    z_a, z_b, queue = batch.tensors()
    everything = len(batch.rows(1.0)[0].negatives)
    full = case.objective(batch)(z_a, z_b, negatives=queue)
    drawn = case.objective(batch, negatives_per_anchor=everything)(z_a, z_b, negatives=queue)
    torch.testing.assert_close(drawn, full)


@every_pairing
def test_k_negative_loss_averages_to_the_exhaustive_mean_over_subsets(pairing: str) -> None:
    """With k = 1 the expected loss is the mean over single negatives of log(1 + exp(s - p))."""
    batch = Batch.random(4, 3, pairing=pairing, queue=2)
    z_a, z_b, queue = batch.tensors()
    generator = torch.Generator().manual_seed(5)
    objective = flatclr.InfoNCE(0.5, negatives_per_anchor=1, generator=generator, pairing=pairing)
    draws = torch.stack([objective(z_a, z_b, negatives=queue) for _ in range(3000)]).detach()
    expected = np.mean([np.log1p(np.exp(row.negatives - row.positive)).mean() for row in batch.rows(2.0)])
    standard_error = draws.std() / math.sqrt(len(draws))
    assert abs(draws.mean() - expected) < 4 * standard_error


def test_a_seeded_generator_repeats_its_draw() -> None:
    z_a, z_b, _ = Batch.random(8, 3).tensors()
    losses = [
        flatclr.InfoNCE(negatives_per_anchor=3, generator=torch.Generator().manual_seed(s))(z_a, z_b).item()
        for s in (1, 1, 2)
    ]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own tracer
@pytest.mark.parametrize("name", ["info_nce", "flat_nce", "holder_2", "fmicl_js", "flo"])
@pytest.mark.usefixtures("way")
def test_torch_compile_gives_the_same_loss_and_gradient(name: str) -> None:
    case = {case.name: case for case in CASES}[name]
    batch = Batch.random(5, 4, pairing=case.pairing)
    loss, g_a, g_b = loss_and_gradients(case, batch)
    z_a, z_b, _ = batch.tensors()
    compiled = torch.compile(case.objective(batch), backend="aot_eager")
    again = compiled(z_a, z_b)
    torch.testing.assert_close(again, loss)
    for got, want in zip(torch.autograd.grad(again, (z_a, z_b)), (g_a, g_b), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("queue", [0, 6])
def test_a_compiled_controlled_step_uses_the_beta_of_its_forward(queue: int) -> None:
    """The controller changes beta before backward; a compiler that copies it again would use the next one."""
    batch = Batch.random(5, 4, queue=queue)

    def gradient(compiled: bool) -> tuple[Tensor, Tensor]:
        torch._dynamo.reset()
        objective = flatclr.FlatNCE(flatclr.EssControl(target=0.4, rate=0.5)).double()
        z_a, z_b, rows = batch.tensors()
        call = torch.compile(objective, backend="aot_eager") if compiled else objective
        (g,) = torch.autograd.grad(call(z_a, z_b, negatives=rows), z_a)
        return g, objective.scale.control.inverse_temperature

    for got, want in zip(gradient(compiled=True), gradient(compiled=False), strict=True):
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


@pytest.mark.parametrize("gamma", [1e-300, 1e-13, 1e13, 1e300, -1e300])
def test_every_order_of_the_holder_mean_is_finite_in_float32(gamma: float) -> None:
    z_a, z_b, _ = Batch.random(5, 4).tensors(torch.float32)
    loss = flatclr.HolderFlatNCE(0.1, gamma=gamma)(z_a, z_b)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, z_a)[0].isfinite().all()


@every_case
def test_backward_inside_autocast_keeps_its_precision(case: Case) -> None:
    batch = Batch.random(8, 16, pairing=case.pairing)
    z_a, z_b, _ = batch.tensors(torch.float32)
    objective = case.build(pairing=case.pairing)
    (want,) = torch.autograd.grad(objective(z_a, z_b), z_a)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (got,) = torch.autograd.grad(objective(z_a, z_b), z_a)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
