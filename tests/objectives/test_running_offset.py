"""FLO and NWJ take their offset from the negatives of earlier batches, and the bound holds for it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.objectives.variational import RunningLogMean

BETA = 10.0


def batches(count: int, spread: float = 0.1) -> list[tuple[Tensor, Tensor]]:
    """Nearly equal embeddings, as untrained networks have."""
    generator = torch.Generator().manual_seed(0)
    z = 1 + spread * torch.randn(count, 2, 6, 5, generator=generator, dtype=torch.float64)
    return [(a, b) for a, b in z]


def log_mean(z_a: Tensor, z_b: Tensor) -> float:
    """Over all pairs a_i, b_j with i != j, by loops."""
    a, b = (torch.nn.functional.normalize(z, dim=1) for z in (z_a, z_b))
    scores = [math.exp(BETA * float(a[i] @ b[j])) for i in range(len(a)) for j in range(len(b)) if i != j]
    return math.log(sum(scores) / len(scores))


def positives(z_a: Tensor, z_b: Tensor) -> float:
    a, b = (torch.nn.functional.normalize(z, dim=1) for z in (z_a, z_b))
    return BETA * sum(float(x @ y) for x, y in zip(a, b, strict=True)) / len(a)


@pytest.mark.parametrize("kind", [flatclr.FLO, flatclr.NWJ])
def test_the_offset_is_that_of_earlier_batches_and_of_the_first_its_own(kind: type[flatclr.Objective]) -> None:
    objective = kind(1 / BETA, pairing="one_way", running_offset=True).double()
    running = None
    for z_a, z_b in batches(4):
        own = log_mean(z_a, z_b)
        running = own if running is None else running
        expected = math.exp(own - running) - 1 + running - positives(z_a, z_b)  # at u = -(p - m), or s + 1 - m
        assert objective(z_a, z_b).item() == pytest.approx(expected, rel=1e-9)
        running += 0.1 * (own - running)


@pytest.mark.parametrize("kind", [flatclr.FLO, flatclr.NWJ])
def test_untrained_embeddings_do_not_start_at_ten_thousand_nats(kind: type[flatclr.Objective]) -> None:
    z_a, z_b = batches(1, spread=0.01)[0]
    assert kind(0.1, running_offset=False)(z_a, z_b) > 5_000
    assert kind(0.1, running_offset=True)(z_a, z_b).abs() < 0.1  # nearly all is shared by all


def test_the_offset_survives_a_checkpoint_and_earlier_checkpoints_can_be_read() -> None:
    first, second = batches(2)
    trained, resumed, old = (flatclr.FLO(0.1) for _ in range(3))
    trained(*first)
    resumed.load_state_dict(trained.state_dict())
    assert resumed(*second) == trained(*second)
    state = {name: value for name, value in trained.state_dict().items() if "running" not in name}
    old.load_state_dict(state)
    assert old.u.running is not None
    assert old.u.running.value.isnan()  # type: ignore[union-attr]


def test_evaluation_and_unusable_batches_teach_nothing() -> None:
    first, second = batches(2)
    objective = flatclr.NWJ(0.1, running_offset=True)
    objective(*first)
    before = objective.running.value.clone()  # type: ignore[union-attr]
    objective.eval()(*second)
    assert torch.equal(objective.running.value, before)  # type: ignore[union-attr]
    running = RunningLogMean()
    assert running(torch.tensor(math.nan)).isnan()
    assert running(torch.tensor(3.0)) == 3
    running(torch.tensor(math.inf))
    assert running.value == 3


def test_a_running_offset_is_a_switch() -> None:
    with pytest.raises(TypeError, match="running_offset must be True or False, got 1"):
        flatclr.NWJ(running_offset=1)  # type: ignore[arg-type]


def test_the_trainer_gives_nwj_an_offset_unless_told_otherwise() -> None:
    from flatclr.training.build_objective import build_objective

    config = flatclr.TrainConfig(objective="nwj")
    assert build_objective(config).running is not None
    assert build_objective(config.changed(objective_options={"running_offset": False})).running is None
