"""Two encoders on pairs whose mutual information is known: what a batch of 8 shows, and what was learned behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import flatclr

BATCH = 8
POOL_NEGATIVES, POOL_PAIRS = 4096, 2048
BETAS = (5.0, 7.0, 10.0, 14.0, 20.0, 28.0, 40.0, 56.0)
OBJECTIVES: dict[str, Callable[[], flatclr.Objective]] = {
    "InfoNCE, beta 30": lambda: flatclr.InfoNCE(temperature=1 / 30, pairing="cross"),
    "FlatNCE, beta 30": lambda: flatclr.FlatNCE(temperature=1 / 30, pairing="cross"),
    "FlatNCE, ESS 0.25": lambda: flatclr.FlatNCE(temperature=flatclr.EssControl(target=0.25), pairing="cross"),
}


@dataclass(frozen=True)
class GaussianPairs:
    """x and y in d dimensions, each coordinate of y correlated with the same one of x: MI = -d/2 log(1 - rho^2)."""

    mi_nats: float = 10.0
    dimensions: int = 20

    def draw(self, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        noise = math.exp(-self.mi_nats / self.dimensions)  # sqrt(1 - rho^2)
        x, e = torch.randn(2, pairs, self.dimensions, generator=generator)
        return x, math.sqrt(1 - noise**2) * x + noise * e


@dataclass(frozen=True)
class Reading:
    """What is known of a run at a step."""

    objective: str
    step: int
    batch_mi_nats: float  # mean bound of the batches since the last reading
    batch_ceiling_nats: float
    pool_mi_nats: float
    pool_ceiling_nats: float
    pool_beta: float
    beta: float


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
def pool_mi(encoders: TwoEncoders, pairs: GaussianPairs, seed: int) -> tuple[flatclr.ContrastStats, float]:
    """InfoNCE of fresh pairs against 4,096 negatives; beta is chosen on half of the pairs and used on the other."""
    generator = torch.Generator().manual_seed(seed)
    z_x, z_y = encoders(*pairs.draw(POOL_PAIRS, generator))
    _, negatives = encoders(*pairs.draw(POOL_NEGATIVES, generator))
    (choose_x, read_x), (choose_y, read_y) = z_x.chunk(2), z_y.chunk(2)

    def stats(a: Tensor, b: Tensor, beta: float) -> flatclr.ContrastStats:
        return flatclr.contrast_stats(
            a, b, inverse_temperature=beta, pairing="one_way", negatives=negatives, in_batch_negatives=False
        )

    best = max(BETAS, key=lambda beta: stats(choose_x, choose_y, beta).mi_nats.item())
    return stats(read_x, read_y, best), best


def readings(name: str, *, steps: int, every: int, seed: int) -> Iterator[Reading]:
    """Train with one objective; the same pairs and initial weights for all of them."""
    torch.manual_seed(seed)
    pairs, generator = GaussianPairs(), torch.Generator().manual_seed(seed)
    objective, encoders = OBJECTIVES[name](), TwoEncoders(GaussianPairs.dimensions)
    optimizer = torch.optim.Adam(encoders.parameters(), lr=1e-3)
    bounds = []
    for step in range(1, steps + 1):
        loss, stats = objective.with_stats(*encoders(*pairs.draw(BATCH, generator)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bounds.append(stats.mi_nats)
        if step % every == 0 or step == steps:
            pool, pool_beta = pool_mi(encoders, pairs, seed + 1)
            yield Reading(
                objective=name,
                step=step,
                batch_mi_nats=torch.stack(bounds).mean().item(),
                batch_ceiling_nats=stats.ceiling_nats,
                pool_mi_nats=pool.mi_nats.item(),
                pool_ceiling_nats=pool.ceiling_nats,
                pool_beta=pool_beta,
                beta=float(objective.inverse_temperature),
            )
            bounds.clear()
