"""SogCLR and iSogCLR: averages of every sample, over steps, in checkpoints; the plain ladder climbs gamma = 1."""

import copy
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.objectives.sogclr import weighted_mean_score
from tests.support import field_oracles, oracles
from tests.support.harness import PAIRINGS, Batch, every_pairing

BETA, GAMMA, SAMPLES = 4.0, 0.6, 9
BATCHES = ([7, 1, 3, 4], [3, 8, 1, 0], [1, 7, 3, 2])  # which samples, step by step


def batches(pairing: str = "two_view") -> list[tuple[Batch, Tensor]]:
    made = [Batch.random(4, 3, pairing=pairing, seed=seed) for seed in range(len(BATCHES))]
    return [(batch, torch.tensor(index)) for batch, index in zip(made, BATCHES, strict=True)]


class Averages:
    """u of every sample by the published recursion, in plain numbers."""

    def __init__(self, gamma: float) -> None:
        self.gamma, self.u = gamma, {}

    def visit(self, rows: list[oracles.Row], index: list[int]) -> list[float]:
        """u of every anchor; the mean of a sample's anchors is kept."""
        used = []
        for anchor, row in enumerate(rows):
            g = sum(math.exp(s) for s in row.negatives) / len(row.negatives)
            old = self.u.get(index[anchor % len(index)])
            used.append(g if old is None else (1 - self.gamma) * old + self.gamma * g)
        for place, sample in enumerate(index):
            anchors = used[place :: len(index)]
            self.u[sample] = sum(anchors) / len(anchors)
        return used


@every_pairing
def test_losses_and_averages_follow_the_published_recursion(pairing: str, route: str) -> None:
    objective = flatclr.SogCLR(1 / BETA, gamma=GAMMA, samples=SAMPLES, pairing=pairing, route=route).double()
    averages = Averages(GAMMA)
    for batch, index in batches(pairing):
        z_a, z_b, _ = batch.tensors()
        loss, rows = objective(z_a, z_b, index=index), batch.rows(BETA)
        u = averages.visit(rows, index.tolist())
        terms = [
            field_oracles.sog_clr(BETA, u_i)(np.array([row.positive]), row.negatives)
            for row, u_i in zip(rows, u, strict=True)
        ]
        assert loss.item() == pytest.approx(np.mean(terms), rel=1e-11)
        kept = {i: float(x.exp()) for i, x in enumerate(objective.state.log_average) if x > -torch.inf}
        assert kept == pytest.approx(averages.u, rel=1e-11)


def test_the_gradient_weighs_an_anchor_by_g_over_u(route: str) -> None:
    objective = flatclr.SogCLR(1 / BETA, gamma=GAMMA, route=route).double()
    (first, _), (batch, _), _ = batches()
    index = torch.tensor(BATCHES[0])
    averages = Averages(GAMMA)
    objective(*first.tensors()[:2], index=index)
    averages.visit(first.rows(BETA), BATCHES[0])
    z_a, z_b, _ = batch.tensors()
    got = torch.autograd.grad(objective(z_a, z_b, index=index), (z_a, z_b))
    rows = batch.rows(BETA)
    u = averages.visit(rows, BATCHES[0])
    weights = [sum(math.exp(s) for s in r.negatives) / len(r.negatives) / u_i for r, u_i in zip(rows, u, strict=True)]

    def potential(z_a: oracles.Array, z_b: oracles.Array) -> float:
        moved = Batch(z_a, z_b, None, "two_view").rows(BETA)
        terms = [w * oracles.logsumexp(r.negatives) - r.positive for w, r in zip(weights, moved, strict=True)]
        return float(np.mean(terms)) / BETA

    want = oracles.finite_difference_gradient(potential, batch.z_a, batch.z_b)
    for gradient, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-6, atol=1e-8)


def both() -> list[flatclr.Objective]:
    return [flatclr.SogCLR(0.2), flatclr.ISogCLR(0.2)]


def test_evaluation_reads_the_averages_and_changes_nothing() -> None:
    (first, index), (second, _), _ = batches()
    for objective in both():
        objective(*first.tensors(torch.float32)[:2], index=index)
        before = copy.deepcopy(objective.state_dict())
        twin = copy.deepcopy(objective)
        objective.eval()
        z_a, z_b, _ = second.tensors(torch.float32)
        torch.testing.assert_close(objective(z_a, z_b, index=index), twin(z_a, z_b, index=index))
        objective(z_a, z_b)  # without an index every sample is new
        torch.testing.assert_close(objective.state_dict(), before, rtol=0, atol=0)


def test_an_index_must_come_with_every_step() -> None:
    z = torch.randn(4, 3)
    for objective in both():
        name = type(objective).__name__
        with pytest.raises(ValueError, match=f"{name} must be told which samples these are, got no index="):
            objective(z, z)
        with pytest.raises(ValueError, match=r"index must be 4 whole numbers, .* got torch.int64 of shape \[3\]"):
            objective(z, z, index=torch.arange(3))
        with pytest.raises(ValueError, match=r"got torch.float32 of shape \[4\]"):
            objective(z, z, index=torch.arange(4.0))
        with pytest.raises(ValueError, match="index must be within 0 and 3, got -1 to 3"):
            objective(z, z, index=torch.tensor([0, -1, 2, 3]))
    with pytest.raises(ValueError, match=r"index must be within 0 and 4, got 2 to 5; .* samples= as large"):
        flatclr.SogCLR(samples=5)(z, z, index=torch.arange(2, 6))
    with pytest.raises(ValueError, match="index must be left out for InfoNCE"):
        flatclr.InfoNCE()(z, z, index=torch.arange(4))


@pytest.mark.parametrize("kind", [flatclr.SogCLR, flatclr.ISogCLR])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"negatives_per_anchor": 2}, "must see all negatives of a batch, got negatives_per_anchor=2"),
        ({"temperature": flatclr.EssControl()}, "must be a number, got an EssControl"),
        ({"gamma": 1.5}, "gamma must be at most 1, got 1.5"),
        ({"gamma": 0.0}, "gamma must be a finite number > 0"),
        ({"normalize": False}, "must have bounded scores"),
        ({"samples": 0}, "samples must be a whole number >= 1"),
    ],
)
def test_what_an_average_over_steps_cannot_have_is_refused(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        kind(**options)


def test_room_is_made_as_indices_come_and_the_state_dict_carries_it() -> None:
    z = torch.randn(4, 3)
    for objective in both():
        objective(z, z, index=torch.tensor([2, 0, 5, 1]))
        objective(z, z, index=torch.tensor([9, 0, 5, 1]))
        assert objective.state.rows == 10
        assert (objective.state.log_average > -torch.inf).nonzero().flatten().tolist() == [0, 1, 2, 5, 9]
        file = io.BytesIO()
        torch.save(objective.state_dict(), file)
        file.seek(0)
        fresh = type(objective)(0.2)
        fresh.load_state_dict(torch.load(file))
        torch.testing.assert_close(fresh.state_dict(), objective.state_dict(), rtol=0, atol=0)
        again = [o(z, -z, index=torch.tensor([9, 1, 2, 3])) for o in (objective, fresh)]
        assert torch.equal(*again)


def test_half_precision_modules_keep_their_averages_in_float32() -> None:
    z = torch.randn(4, 3).half()
    for objective in both():
        objective(z, z, index=torch.arange(4))
        assert objective.half().state.log_average.dtype == torch.float32
        objective(z, z, index=torch.arange(4))


def test_a_batch_of_nan_leaves_the_averages_alone() -> None:
    z, index = torch.randn(4, 3), torch.arange(4)
    for objective in both():
        objective(z, z, index=index)
        before = copy.deepcopy(objective.state_dict())
        assert objective(z * torch.nan, z, index=index).isnan()
        torch.testing.assert_close(objective.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("temperature", [1e-3, 0.1])
def test_averages_of_sharp_scores_stay_finite_in_float32(temperature: float) -> None:
    z_a, z_b = torch.randn(2, 6, 4)
    objective = flatclr.SogCLR(temperature)
    for step in range(3):
        loss = objective(z_a.roll(step, 0).requires_grad_(), z_b, index=torch.arange(6))
        assert loss.isfinite()
    assert objective.state.log_average.isfinite().all()


def test_several_views_and_labels_keep_one_average_per_sample() -> None:
    views, index = torch.randn(3, 6, 4), torch.tensor([5, 3, 1, 0, 2, 4])
    objective = flatclr.SogCLR(0.2)
    objective(views, index=index)
    objective(views, index=index, labels=torch.tensor([0, 0, 1, 1, 2, 2]))
    objective(views, index=index, labels=torch.tensor([0, 0, 0, 0, 0, 1]), ids=torch.tensor([5, 6, 7, 8, 9, 5]))
    assert objective.state.log_average.isfinite().all()


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_the_divergence_of_the_weights_is_that_of_the_oracle(pairing: str, route: str) -> None:
    batch = Batch.random(6, 3, pairing=pairing, queue=2)
    z_a, z_b, queue = batch.tensors()
    pairs = flatclr.PairSet.of(z_a, z_b, negatives=queue, pairing=pairing, route=route)
    beta = torch.linspace(1, 6, pairs.layout.anchors, dtype=torch.float64)
    got = flatclr.objectives.negatives_kl(flatclr.stats_of(pairs, beta), weighted_mean_score(pairs, beta))
    rows = batch.rows(1.0)
    want = [field_oracles.negatives_kl(b * row.negatives) for b, row in zip(beta.tolist(), rows, strict=True)]
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-9, atol=1e-12)


def test_temperatures_follow_the_divergence_of_their_samples(route: str) -> None:
    settings = {"gamma": GAMMA, "rho": 0.4, "rate": 0.05, "minimum": 0.2, "maximum": 0.3}
    objective = flatclr.ISogCLR(0.25, samples=SAMPLES, route=route, **settings).double()
    tau, slope, averages = dict.fromkeys(range(SAMPLES), 0.25), {}, Averages(GAMMA)
    for batch, index in batches():
        z_a, z_b, _ = batch.tensors()
        loss = objective(z_a, z_b, index=index)
        betas = [1 / tau[i] for i in index.tolist()] * 2
        rows = [oracles.Row(b * row.positive, b * row.negatives) for b, row in zip(betas, batch.rows(1.0), strict=True)]
        u = averages.visit(rows, index.tolist())
        terms = [
            field_oracles.sog_clr(b, u_i)(np.array([row.positive]), row.negatives)
            for b, row, u_i in zip(betas, rows, u, strict=True)
        ]
        assert loss.item() == pytest.approx(np.mean(terms), rel=1e-7)  # 0.25 is kept, its inverse is not rounded
        for place, sample in enumerate(index.tolist()):
            kl = np.mean([field_oracles.negatives_kl(row.negatives) for row in rows[place :: len(index)]])
            newest = settings["rho"] - kl
            slope[sample] = newest if sample not in slope else (1 - GAMMA) * slope[sample] + GAMMA * newest
            tau[sample] = min(max(tau[sample] - settings["rate"] * slope[sample], 0.2), 0.3)
        np.testing.assert_allclose(objective.state.temperature.numpy(), [tau[i] for i in range(SAMPLES)], rtol=1e-7)
    assert len({round(t, 6) for t in tau.values()}) > 3  # they differ, and some may sit at a clip


def test_samples_with_a_near_duplicate_get_larger_temperatures() -> None:
    twins, alone = torch.randn(8, 64).repeat(2, 1) + 0.2 * torch.randn(16, 64), torch.randn(16, 64)
    z = torch.cat([twins, alone])
    objective = flatclr.ISogCLR(0.1)
    for _ in range(100):
        objective(z, z, index=torch.arange(32))
    of_twins, of_others = objective.state.temperature.split(16)
    assert of_twins.min() > of_others.max()
    assert float(objective.inverse_temperature) == pytest.approx(1 / objective.state.temperature.mean().item())
