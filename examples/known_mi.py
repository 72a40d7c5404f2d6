"""Two encoders on pairs whose mutual information is known: what a batch of 8 shows, and what was learned behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from torch import Tensor

import flatclr
from flatclr.studies import gaussian_pairs
from flatclr.studies.gaussian_pairs import BETAS, POOL_NEGATIVES, GaussianPairs, TwoEncoders, pool_mi

__all__ = [
    "BATCH",
    "BETAS",
    "OBJECTIVES",
    "POOL_NEGATIVES",
    "GaussianPairs",
    "Reading",
    "TwoEncoders",
    "pool_mi",
    "readings",
]

BATCH = 8
OBJECTIVES: dict[str, Callable[[], flatclr.Objective]] = {
    "InfoNCE, beta 30": lambda: flatclr.InfoNCE(temperature=1 / 30, pairing="cross"),
    "FlatNCE, beta 30": lambda: flatclr.FlatNCE(temperature=1 / 30, pairing="cross"),
    "FlatNCE, ESS 0.25": lambda: flatclr.FlatNCE(temperature=flatclr.EssControl(target=0.25), pairing="cross"),
}


@dataclass(frozen=True)
class Reading(gaussian_pairs.Reading):
    """What is known of a run at a step."""

    objective: str


def readings(name: str, *, steps: int, every: int, seed: int) -> Iterator[Reading]:
    """Train with one objective; the same pairs and initial weights for all of them."""
    objective = OBJECTIVES[name]()

    def loss(z_x: Tensor, z_y: Tensor) -> tuple[Tensor, flatclr.ContrastStats, float]:
        value, stats = objective.with_stats(z_x, z_y)
        return value, stats, float(objective.inverse_temperature)

    for row in gaussian_pairs.readings(loss, batch=BATCH, steps=steps, every=every, seed=seed):
        yield Reading(**asdict(row), objective=name)
