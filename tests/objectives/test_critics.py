"""Critics in training: values against loops over pairs, what is refused, and bounds that stop where they are told."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flatclr
from flatclr.objectives import CRITICS, CriticObjective
from flatclr.training.build_objective import build_objective
from flatclr.training.config import TrainConfig

LEARNED = [name for name in CRITICS if name != "cosine"]
KINDS: list[type[CriticObjective]] = [flatclr.InfoNCE, flatclr.NWJ, flatclr.DV, flatclr.FLO]


class Table(nn.Module):
    """Scores by heart."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.scores


def by_loops(kind: str, scores: list[list[float]]) -> float:
    """Minus the bound of one direction, from the formulas."""
    n = len(scores)
    others = [[scores[i][j] for j in range(n) if j != i] for i in range(n)]
    positives = [scores[i][i] for i in range(n)]
    if kind == "InfoNCE":
        losses = [math.log(sum(map(math.exp, [p, *rest]))) - p for p, rest in zip(positives, others, strict=True)]
        return sum(losses) / n
    partition = sum(math.exp(s) for rest in others for s in rest) / (n * (n - 1))
    if kind == "DV":
        return math.log(partition) - sum(positives) / n
    if kind == "NWJ":
        return partition / math.e - sum(positives) / n
    parts = [sum(math.exp(s - p) for s in rest) / (n - 1) for p, rest in zip(positives, others, strict=True)]
    return sum(-p + math.exp(p) * part - 1 for p, part in zip(positives, parts, strict=True)) / n


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_is_that_of_the_scores(kind: type[CriticObjective]) -> None:
    scores = torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = torch.zeros(5, 2, dtype=torch.float64)
    options: dict[str, Any] = {"running_offset": False} if kind in (flatclr.FLO, flatclr.NWJ) else {}
    there = kind(1.0, critic=Table(scores), pairing="one_way", **options)(z, z).item()
    assert there == pytest.approx(by_loops(kind.__name__, scores.tolist()))
    halved = kind(2.0, critic=Table(scores), pairing="one_way", **options)(z, z).item()
    assert halved == pytest.approx(by_loops(kind.__name__, (scores / 2).tolist()))
    if kind is not flatclr.DV:  # its logarithm is of both directions' mean
        back = by_loops(kind.__name__, scores.T.tolist())
        assert kind(1.0, critic=Table(scores), **options)(z, z).item() == pytest.approx((there + back) / 2)


def test_a_bilinear_critic_of_the_identity_is_the_cosine_without_normalisation() -> None:
    x, y = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    objective = flatclr.InfoNCE(1.0, critic="bilinear", critic_dim=4)
    objective.critic.weight.data = torch.eye(4)  # type: ignore[union-attr, operator]
    expected = flatclr.InfoNCE(1.0, pairing="cross", normalize=False)(x, y)
    torch.testing.assert_close(objective(x, y), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("critic", LEARNED)
def test_gradients_reach_embeddings_and_critic(kind: type[CriticObjective], critic: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 6, 4).requires_grad_()
    objective = kind(1.0, critic=critic, critic_dim=4)
    loss, stats = objective.with_stats(x, y)
    gradients = torch.autograd.grad(objective(x, y), [x, y, *objective.critic.parameters()])  # type: ignore[union-attr]
    assert loss.isfinite()
    assert len(stats.ess) == 12
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all(gradient.any() for gradient in gradients[:2])


@pytest.mark.parametrize("kind", KINDS)
def test_a_critic_learns_the_dependence_of_gaussian_pairs(kind: type[CriticObjective]) -> None:
    """Correlation 0.8 has 0.51 nats; the bound finds more than half of it, and of shuffled pairs nothing."""
    torch.manual_seed(0)
    objective = kind(1.0, critic="separable", critic_dim=1, pairing="one_way")
    optimizer = torch.optim.Adam(objective.parameters(), 1e-3)

    def pairs(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 1)
        return x, 0.8 * x + 0.6 * torch.randn(n, 1)

    for _ in range(200):
        optimizer.zero_grad()
        objective(*pairs(64)).backward()
        optimizer.step()
    x, y = pairs(512)
    with torch.no_grad():
        ceiling = math.log(512) if kind is flatclr.InfoNCE else 0.0
        found, shuffled = (ceiling - objective.eval()(x, other).item() for other in (y, y.roll(1, 0)))
    assert 0.25 < found < 0.65
    assert shuffled < 0.05


@pytest.mark.parametrize(("kind", "ceiling"), [(flatclr.InfoNCE, math.log(5)), (flatclr.DV, 0.0)])
def test_the_loss_is_how_far_the_bound_is_from_where_it_stops(kind: type[CriticObjective], ceiling: float) -> None:
    z = torch.zeros(5, 2)
    for nats in (0.1, 3.0):
        table = Table(2 * torch.eye(5))
        plain = kind(1.0, critic=table, pairing="one_way")(z, z)
        stopped = kind(1.0, critic=table, pairing="one_way", stop_at_nats=nats)(z, z)
        torch.testing.assert_close(stopped, (ceiling - plain - nats).abs())


def test_training_stops_at_the_given_bound_and_goes_back_to_it() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    for start in (0.1, 3.0):
        encoder = nn.Linear(8, 8, bias=False)
        encoder.weight.data = start * torch.eye(8)
        objective = flatclr.InfoNCE(1.0, critic="bilinear", critic_dim=8, stop_at_nats=2.0)
        optimizer = torch.optim.Adam([*encoder.parameters(), *objective.parameters()], 1e-2)
        for _ in range(300):
            optimizer.zero_grad()
            objective(encoder(x), encoder(x)).backward()
            optimizer.step()
        with torch.no_grad():
            assert objective.with_stats(encoder(x), encoder(x))[1].mi_nats.item() == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: flatclr.FlatNCE(critic="bilinear"), ValueError, "FlatNCE must have bounded scores, got critic="),
        (lambda: flatclr.HolderFlatNCE(critic="mlp"), ValueError, "HolderFlatNCE must have bounded scores"),
        (lambda: flatclr.InfoNCE(critic="bilnear"), ValueError, "did you mean 'bilinear'"),
        (lambda: flatclr.InfoNCE(critic="mlp"), TypeError, "critic_dim must be a whole number >= 1, got None"),
        (lambda: flatclr.InfoNCE(critic=len), TypeError, "critic must be one of .* or a module, got <built-in"),
        (
            lambda: flatclr.DV(critic="mlp", critic_dim=2, pairing="views"),
            ValueError,
            "pairing of a critic must be one of",
        ),
        (lambda: flatclr.InfoNCE(stop_at_nats=-1.0), ValueError, "stop_at_nats must be a finite number > 0, got -1.0"),
        (
            lambda: flatclr.InfoNCE(flatclr.EssControl(), critic="mlp", critic_dim=2),
            ValueError,
            "temperature of InfoNCE with a critic must be a number, got an EssControl",
        ),
        (
            lambda: flatclr.InfoNCE(critic="mlp", critic_dim=2, negatives_per_anchor=3),
            ValueError,
            "negatives_per_anchor must be left out with a critic, got 3",
        ),
        (
            lambda: flatclr.InfoNCE(critic=Table(torch.zeros(3, 2)))(torch.zeros(4, 2), torch.zeros(4, 2)),
            ValueError,
            r"critic\(x, y\) must return scores of all pairs, shape \[4, 4\], got \[3, 2\]",
        ),
        (
            lambda: flatclr.InfoNCE(critic="mlp", critic_dim=2)(*torch.zeros(2, 4, 2), negatives=torch.zeros(3, 2)),
            ValueError,
            "with a critic must have two views of a batch alone",
        ),
    ],
)
def test_bad_input_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_config_makes_the_critic_for_its_embedding() -> None:
    config = TrainConfig(objective="nwj", objective_options={"critic": "bilinear"}, embedding=24)
    objective = build_objective(config)
    assert isinstance(objective, CriticObjective)
    assert objective.critic.weight.shape == (24, 24)  # type: ignore[union-attr]
    assert objective.controls == []
    assert float(objective.inverse_temperature) == 1.0


@pytest.mark.parametrize("asked", [{"route": "streamed"}, {"backend": "torch"}], ids=str)
def test_a_critic_refuses_a_route_that_its_scores_do_not_take(asked: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must be left out with a critic"):
        flatclr.InfoNCE(critic="bilinear", critic_dim=4, **asked)  # type: ignore[arg-type]
