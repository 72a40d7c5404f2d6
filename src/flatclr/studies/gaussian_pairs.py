"""Two encoders on pairs whose mutual information is known: what a batch shows, and what was learned behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from flatclr.contrast import ContrastStats, contrast_stats
from flatclr.diagnostics import ess_with_positive
from flatclr.objectives import OBJECTIVES, EssControl
from flatclr.studies.study import Job, Numbers
from flatclr.threads import threads

POOL_NEGATIVES, POOL_PAIRS = 4096, 2048
CROSS_ENTROPY = "cross_entropy"
BETAS = (5.0, 7.0, 10.0, 14.0, 20.0, 28.0, 40.0, 56.0)
Loss = Callable[[Tensor, Tensor], tuple[Tensor, ContrastStats, float]]  # the loss, the stats of the batch, beta


@dataclass(frozen=True)
class GaussianPairs:
    """x and y in d dimensions, each coordinate of y correlated with the same one of x: MI = -d/2 log(1 - rho^2)."""

    mi_nats: float = 10.0
    dimensions: int = 20

    @property
    def correlation(self) -> float:
        return math.sqrt(-math.expm1(-2 * self.mi_nats / self.dimensions))

    def draw(self, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        noise = math.exp(-self.mi_nats / self.dimensions)  # sqrt(1 - rho^2)
        x, e = torch.randn(2, pairs, self.dimensions, generator=generator)
        return x, math.sqrt(1 - noise**2) * x + noise * e


class TwoEncoders(nn.Module):
    """An MLP of three layers for each side."""

    def __init__(self, dimensions: int, *, width: int = 256, embedding: int = 64) -> None:
        super().__init__()
        self.x, self.y = (
            nn.Sequential(
                nn.Linear(dimensions, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, embedding)
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.x(x), self.y(y)


@torch.no_grad()
def pool_mi(encoders: TwoEncoders, pairs: GaussianPairs, seed: int) -> tuple[ContrastStats, float]:
    """InfoNCE of fresh pairs against 4,096 negatives; beta is chosen on half of the pairs and used on the other."""
    generator, dtype = torch.Generator().manual_seed(seed), next(encoders.parameters()).dtype
    z_x, z_y = encoders(*(side.to(dtype) for side in pairs.draw(POOL_PAIRS, generator)))
    _, negatives = encoders(*(side.to(dtype) for side in pairs.draw(POOL_NEGATIVES, generator)))
    (choose_x, read_x), (choose_y, read_y) = z_x.chunk(2), z_y.chunk(2)

    def stats(a: Tensor, b: Tensor, beta: float) -> ContrastStats:
        return contrast_stats(
            a, b, inverse_temperature=beta, pairing="one_way", negatives=negatives, in_batch_negatives=False
        )

    best = max(BETAS, key=lambda beta: stats(choose_x, choose_y, beta).mi_nats.item())
    return stats(read_x, read_y, best), best


@dataclass(frozen=True)
class Reading:
    """What is known of a run at a step; of batches, means since the last reading."""

    step: int
    batch_mi_nats: float
    batch_ceiling_nats: float
    ess: float  # over negatives
    ess_with_positive: float  # of InfoNCE's own weights
    pool_mi_nats: float
    pool_ceiling_nats: float
    pool_beta: float
    beta: float


def readings(
    loss: Loss, *, batch: int, steps: int, every: int, seed: int, dtype: torch.dtype = torch.float32
) -> Iterator[Reading]:
    """Train with one loss; the same pairs and initial weights for all of them, whatever the precision."""
    torch.manual_seed(seed)
    pairs, generator = GaussianPairs(), torch.Generator().manual_seed(seed)
    encoders = TwoEncoders(GaussianPairs.dimensions).to(dtype)
    optimizer = torch.optim.Adam(encoders.parameters(), lr=1e-3)
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    for step in range(1, steps + 1):
        value, stats, beta = loss(*encoders(*(side.to(dtype) for side in pairs.draw(batch, generator))))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        seen.append((stats.mi_nats, stats.ess.mean(), ess_with_positive(stats).mean()))
        if step % every == 0 or step == steps:
            pool, pool_beta = pool_mi(encoders, pairs, seed + 1)
            bound, ess, ess_own = (torch.stack(column).mean().item() for column in zip(*seen, strict=True))
            yield Reading(
                step,
                bound,
                float(stats.ceiling_nats),
                ess,
                ess_own,
                pool.mi_nats.item(),
                float(pool.ceiling_nats),
                pool_beta,
                beta,
            )
            seen.clear()


def plain_cross_entropy(beta: float) -> Loss:
    """InfoNCE of both directions as a cross-entropy over materialised scores, as it is often written."""

    def loss(z_x: Tensor, z_y: Tensor) -> tuple[Tensor, ContrastStats, float]:
        scores = beta * nn.functional.normalize(z_x) @ nn.functional.normalize(z_y).T
        own = torch.arange(len(scores))
        value = (nn.functional.cross_entropy(scores, own) + nn.functional.cross_entropy(scores.T, own)) / 2
        with torch.no_grad():
            stats = contrast_stats(z_x, z_y, inverse_temperature=beta, pairing="cross")
        return value, stats, beta

    return loss


def objective_loss(name: str, *, beta: float | None = None, ess_target: float | None = None) -> Loss:
    """An objective by name at a fixed beta, or at one that holds the ESS."""
    temperature = EssControl(target=ess_target) if ess_target is not None else 1 / (beta or 1.0)
    objective = OBJECTIVES[name](temperature=temperature, pairing="cross")

    def loss(z_x: Tensor, z_y: Tensor) -> tuple[Tensor, ContrastStats, float]:
        value, stats = objective.with_stats(z_x, z_y)
        assert stats is not None
        return value, stats, float(objective.inverse_temperature)

    return loss


def measure(job: Job) -> Numbers:
    """Train by the settings objective, batch, steps, readings, precision, and beta or ess_target; on one thread."""
    settings = job.settings
    if settings["objective"] == CROSS_ENTROPY:
        loss = plain_cross_entropy(settings["beta"])
    else:
        loss = objective_loss(settings["objective"], beta=settings.get("beta"), ess_target=settings.get("ess_target"))
    steps = settings["steps"]
    with threads(1):  # batches this small only wait for each other's threads
        rows = [
            asdict(row)
            for row in readings(
                loss,
                batch=settings["batch"],
                steps=steps,
                every=max(1, steps // settings["readings"]),
                seed=job.seed,
                dtype=getattr(torch, settings.get("precision", "float32")),
            )
        ]
    return {"curve": rows, "pool_mi_nats": rows[-1]["pool_mi_nats"], "batch_mi_nats": rows[-1]["batch_mi_nats"]}
