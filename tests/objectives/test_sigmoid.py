"""SigLIP: the published double sum, and the gradients of its scale and bias."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import flatclr
from flatclr.optim import build_optimizer, set_learning_rate
from flatclr.studies.methods import SIG_LIP
from tests.support import field_oracles, oracles
from tests.support import relation_oracles as ro
from tests.support.harness import Batch, every_pairing
from tests.support.relation_harness import Tensors, options_of, problem_of


def test_it_is_the_published_double_sum(route: str) -> None:
    batch = Batch.random(7, 4)
    z_a, z_b, _ = batch.tensors()
    want = field_oracles.sig_lip_of_views(oracles.normalized(batch.z_a), oracles.normalized(batch.z_b), 10.0, -10.0)
    assert flatclr.SigLIP(route=route).double()(z_a, z_b).item() == pytest.approx(want, rel=1e-6)  # t is a float32


def learned(**options: Any) -> flatclr.SigLIP:
    return flatclr.SigLIP(0.5, bias=-1.25, **options).double()


@every_pairing
@pytest.mark.parametrize("queue", [0, 3])
def test_scale_and_bias_get_the_gradient_of_the_oracle(pairing: str, queue: int, route: str) -> None:
    batch = Batch.random(4, 3, pairing=pairing, queue=queue)
    z_a, z_b, rows = batch.tensors()
    module = learned(pairing=pairing, route=route)
    got = torch.autograd.grad(module(z_a, z_b, negatives=rows), [module.scale.log_inverse_temperature, module.bias])

    def value(log_t: oracles.Array, bias: oracles.Array) -> float:
        loss = field_oracles.sig_lip(bias[0])
        return float(np.mean([loss(np.array([r.positive]), r.negatives) for r in batch.rows(math.exp(log_t[0]))]))

    want = oracles.finite_difference_gradient(value, np.array([math.log(2.0)]), np.array([-1.25]))
    assert [g.item() for g in got] == pytest.approx([w[0] for w in want], rel=1e-5)


@pytest.mark.parametrize("said", [{"labels": [0, 1, 1, 0, 1, 1]}, {"ids": [4, 4, 9, 1, 9, 2], "hard": 2}], ids=str)
def test_the_bias_of_any_relation_gets_the_gradient_of_the_oracle(said: dict[str, Any], route: str) -> None:
    problem = problem_of(3, pairing="views", **said)
    tensors, module = Tensors.of(problem), learned(**options_of(problem), route=route)
    (got,) = torch.autograd.grad(module(*tensors.views, **tensors.brought), module.bias)

    def value(bias: oracles.Array) -> float:
        loss = field_oracles.sig_lip(bias[0])
        return ro.mean(ro.anchors_of(problem, 2.0), lambda a: loss(a.positives, a.negatives))

    (want,) = oracles.finite_difference_gradient(value, np.array([-1.25]))
    assert got.item() == pytest.approx(want[0], rel=1e-5)


def test_a_bias_that_is_not_learned_costs_no_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    mean_phi = flatclr.PairSet.mean_phi
    monkeypatch.setattr(flatclr.PairSet, "mean_phi", lambda *a: passes.append(1) or mean_phi(*a))
    z_a, z_b, _ = Batch.random(4, 3).tensors()
    for learn_bias, expected in ((False, 1), (True, 2)):
        passes.clear()
        flatclr.SigLIP(learn_bias=learn_bias)(z_a, z_b)
        assert len(passes) == expected


def test_scale_and_bias_learn() -> None:
    """Two well separated positions: the optimum classifies every pair."""
    z = torch.eye(8)
    objective = flatclr.SigLIP()
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.3)
    for _ in range(60):
        optimizer.zero_grad()
        loss = objective(z, z)
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    assert objective.bias < 0 < objective.inverse_temperature + objective.bias


@pytest.mark.parametrize(("rate", "pairs"), [(0.24, 256), (0.06, 32)])
@pytest.mark.parametrize("temperature", [0.05, 0.1, 0.5])
def test_scale_and_bias_stay_in_range_at_the_rates_of_the_studies(temperature: float, rate: float, pairs: int) -> None:
    """At the rate of the weights the scale was gone in sixty steps: its gradient is a sum over all negatives."""
    torch.manual_seed(0)
    settings = SIG_LIP.settings(temperature)
    objective = flatclr.SigLIP(temperature, **settings.get("objective_options", {}))
    layers = [torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 16)]
    network = torch.nn.Sequential(*layers)
    optimizer = build_optimizer("sgd", [network, objective], learning_rate=rate, weight_decay=5e-4)

    def views() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(pairs, 32)
        return network(x + 0.5 * torch.randn(pairs, 32)), network(x + 0.5 * torch.randn(pairs, 32))

    for step in range(300):
        set_learning_rate(optimizer, rate, min(1.0, (step + 1) / 50))
        loss = objective(*views())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert 5 < float(objective.inverse_temperature.detach()) < 50  # type: ignore[union-attr]
    with torch.no_grad():
        stats = flatclr.contrast_stats(*views(), inverse_temperature=10.0)
    assert stats.mi_nats > 0.6 * stats.ceiling_nats
