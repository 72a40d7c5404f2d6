"""Training with early stopping on held-out rows."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from flatclr.mi.tasks import Array

_LARGEST_CHECK = 4096  # rows: a check costs their square
Curve = tuple[tuple[int, float], ...]  # (step, validation nats)


@dataclass(frozen=True)
class FitSettings:
    """How long and how a network is trained."""

    steps: int = 1500
    batch_size: int | None = None  # None: the method's own
    hidden: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-3
    check_every: int = 50
    patience: int = 8  # checks without a better one


FAST = FitSettings(steps=200, hidden=32, check_every=25, patience=3)


class Learner(Protocol):
    """What `fit` trains."""

    batch_size: int

    def loss(self, x: Tensor, y: Tensor) -> Tensor: ...
    def validate(self, x: Tensor, y: Tensor) -> float: ...


def fit(
    learner: nn.Module,
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    settings: FitSettings,
    generator: torch.Generator,
) -> Curve:
    """Train, and leave the learner as it was when validation was best.

    The untrained state takes part, so that an anchored critic cannot end below its anchor on validation.
    """
    method: Learner = learner  # type: ignore[assignment]
    x, y = train
    validation = (validation[0][:_LARGEST_CHECK], validation[1][:_LARGEST_CHECK])
    if not any(parameter.requires_grad for parameter in learner.parameters()):
        return ((0, method.validate(*validation)),)
    batch = min(settings.batch_size or method.batch_size, len(x))
    optimizer = torch.optim.AdamW(learner.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
    curve: list[tuple[int, float]] = []
    best, best_state, idle = -math.inf, copy.deepcopy(learner.state_dict()), 0
    order, used = torch.randperm(len(x), generator=generator), 0
    for step in range(settings.steps + 1):
        if step % settings.check_every == 0 or step == settings.steps:
            learner.eval()
            value = method.validate(*validation)
            learner.train()
            curve.append((step, value))
            idle += 1
            if value > best:
                best, best_state, idle = value, copy.deepcopy(learner.state_dict()), 0
            if idle > settings.patience or step == settings.steps:
                break
        if used + batch > len(x):
            order, used = torch.randperm(len(x), generator=generator), 0
        rows = order[used : used + batch]
        used += batch
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1 + math.cos(math.pi * step / (settings.steps + 1))) / 2
        loss = method.loss(x[rows], y[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
    learner.load_state_dict(best_state)
    learner.eval()
    return tuple(curve)


def as_tensor(rows: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32))
