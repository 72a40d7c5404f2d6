"""Trained methods: critics, stopping, and reading beyond the batch."""

import math

import pytest
import torch

import flatclr
from flatclr.mi import FAST, FitSettings, estimate, tasks
from flatclr.mi.critics import make_critic
from flatclr.mi.fit import fit
from flatclr.mi.variational import InfoNCE
from flatclr.objectives.nce import flat_nce
from tests.support.mi import PAIR


def test_flatnce_reads_beyond_its_batch_where_naive_training_diverges():
    x, y = tasks.gaussian_with_mi(6.0).sample(6000, seed=0)
    settings = FitSettings(steps=200, batch_size=64, check_every=100)
    flat = estimate(x, y, "flatnce", settings=settings)

    assert math.log(64) + 0.4 < flat.nats < 6 + 3 * flat.standard_error

    x, y = (torch.from_numpy(v).float() for v in (x, y))
    torch.manual_seed(0)
    critic = make_critic("separable", 20, 20, hidden=128)
    optimizer = torch.optim.Adam(critic.parameters(), 1e-3)
    for step in range(200):
        rows = slice(64 * (step % 60), 64 * (step % 60) + 64)
        loss = flat_nce(flatclr.stats_from_scores(critic(x[rows], y[rows]))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert InfoNCE(critic, 20, 20, 1).validate(x[4000:], y[4000:]) < 0


def test_flatnce_refuses_an_unbounded_critic():
    with pytest.raises(
        ValueError, match="flatnce must have the cosine critic, got Separable; an unbounded one diverges"
    ):
        estimate(*PAIR.sample(100, seed=0), "flatnce", critic="separable")


@pytest.mark.parametrize("critic", ["inner", "bilinear", "separable", "joint", "anchored", "cosine"])
def test_every_critic_can_be_asked_for(critic: str):
    result = estimate(*PAIR.sample(600, seed=0), "infonce", critic=critic, settings=FAST)

    assert result.nats < PAIR.mi_nats + 3 * result.standard_error
    assert result.ceiling_nats == pytest.approx(math.log(120))


def test_training_ends_where_validation_was_best():
    class Scripted(torch.nn.Module):
        batch_size = 4
        values = iter([1.0, 3.0, 2.0, 0.0, 0.0, 0.0])

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.weight.sum()

        def validate(self, x: torch.Tensor, y: torch.Tensor) -> float:
            self.seen = [*getattr(self, "seen", []), self.weight.item()]
            return next(self.values)

    learner, rows = Scripted(), torch.zeros(8, 1)
    curve = fit(
        learner, (rows, rows), (rows, rows), FitSettings(steps=50, check_every=1, patience=2), torch.Generator()
    )

    assert [value for _, value in curve] == [1.0, 3.0, 2.0, 0.0, 0.0]
    assert learner.weight.item() == learner.seen[1] != 0
