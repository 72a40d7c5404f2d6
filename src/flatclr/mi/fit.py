"""Training with early stopping on held-out rows."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from flatclr.checks import checked_device, require_count, require_number
from flatclr.mi.budget import Budget

_LARGEST_CHECK = 4096  # rows: a check costs their square
Curve = tuple[tuple[int, float], ...]  # (step, validation nats)


@dataclass(frozen=True)
class FitSettings:
    """How long and how a network is trained: AdamW, a cosine schedule, early stopping on validation rows.

    Args:
        steps: batches at most.
        batch_size: rows of a batch; None is the method's own, 256, or 64 for a critic that pays for every pair.
        hidden: width of the two hidden layers.
        learning_rate: at the start; it falls to 0 like a cosine.
        weight_decay: of AdamW.
        check_every: steps between looks at the validation rows.
        patience: looks without a better one before training stops.
        device: that trains, "cpu", "cuda" or "cuda:1"; "auto" is cuda where there is one. Weights and batches are drawn
            on the CPU, so that a seed means the same on all.

    >>> settings = FitSettings(steps=50, hidden=16)
    >>> x, y = flatclr.mi.tasks.gaussian_pairs(1, pairs=1).sample(300, seed=0)
    >>> flatclr.mi.estimate(x, y, "infonce", settings=settings).kind
    'lower'
    """

    steps: int = 1500
    batch_size: int | None = None
    hidden: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-3
    check_every: int = 50
    patience: int = 8
    device: str = "auto"

    def __post_init__(self) -> None:
        for name, least in (("hidden", 1), ("check_every", 1), ("steps", 0)):
            advice = f"{getattr(FitSettings, name)} is the default."
            require_count(name, getattr(self, name), at_least=least, advice=advice)
        require_number("patience", self.patience, above=-1, advice="pass 0 or more.")
        if self.batch_size is not None:
            require_count("batch_size", self.batch_size, advice="None leaves it to the method.")
        require_number("learning_rate", self.learning_rate, above=0)
        require_number("weight_decay", self.weight_decay, above=-1e-12, advice="pass 0 or more.")
        if self.device != "auto" and checked_device(self.device).type not in ("cpu", "cuda"):  # "auto" when it is used
            raise ValueError(f"device must be auto, cpu or cuda, got {self.device!r}; readings are in float64.")


FAST = FitSettings(steps=200, hidden=32, check_every=25, patience=3)
"""Settings for a quick look: a small network and at most 200 steps."""


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
    budget: Budget | None = None,
) -> Curve:
    """Train on the settings' device, and leave the learner on the CPU as it was when validation was best.

    The untrained state takes part, so that an anchored critic cannot end below its anchor on validation. The budget may
    end the training at any check.
    """
    budget = budget or Budget()
    method: Learner = learner  # type: ignore[assignment]
    validation = (validation[0][:_LARGEST_CHECK], validation[1][:_LARGEST_CHECK])
    if not any(parameter.requires_grad for parameter in learner.parameters()):
        return ((0, method.validate(*validation)),)
    device = checked_device(settings.device)
    (x, y), validation = _moved(train, device), _moved(validation, device)
    learner.to(device)
    batch = min(settings.batch_size or method.batch_size, len(x))
    optimizer = torch.optim.AdamW(
        learner.parameters(),
        settings.learning_rate,
        weight_decay=settings.weight_decay,
        fused=True if device.type == "cuda" else None,  # of small networks a GPU spends its time on launches
    )
    curve: list[tuple[int, float]] = []
    best, best_state, idle = -math.inf, copy.deepcopy(learner.state_dict()), 0
    order, used = torch.randperm(len(x), generator=generator).to(device), 0
    for step in range(settings.steps + 1):
        if step % settings.check_every == 0 or step == settings.steps:
            learner.eval()
            value = method.validate(*validation)
            learner.train()
            curve.append((step, value))
            idle += 1
            if value > best:
                best, best_state, idle = value, copy.deepcopy(learner.state_dict()), 0
            done = step - curve[-2][0] if len(curve) > 1 else 0
            if idle > settings.patience or step == settings.steps or budget.over(after=done):
                break
        if used + batch > len(x):
            order, used = torch.randperm(len(x), generator=generator).to(device), 0
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
    learner.to("cpu").eval()
    return tuple(curve)


def _moved(pair: tuple[Tensor, Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    return pair[0].to(device), pair[1].to(device)
