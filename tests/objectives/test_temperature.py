"""Temperatures that change: learned ones, and controlled ones in a compiled step."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import flatclr
from tests.support import oracles
from tests.support.harness import Batch, every_pairing


@every_pairing
def test_learned_temperature_gets_the_gradient_of_the_oracle(pairing: str, route: str) -> None:
    batch = Batch.random(4, 3, pairing=pairing, queue=2)
    z_a, z_b, queue = batch.tensors()
    for objective, oracle in (
        (flatclr.InfoNCE, oracles.info_nce),
        (flatclr.DV, oracles.dv_loss),
        (flatclr.NWJ, oracles.nwj_loss),
    ):
        module = objective(0.5, learn_temperature=True, pairing=pairing, route=route).double()
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
