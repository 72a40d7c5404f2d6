"""What changes with the step by plan: the learning rate and the target of ESS control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flatclr.optim import scaled_learning_rate, set_learning_rate, warmup_cosine
from flatclr.training.config import TrainConfig
from flatclr.training.step import TrainStep


@dataclass(frozen=True)
class Schedule:
    """How long a run is, and what holds at each of its steps.

    Args:
        steps_per_epoch, total_steps: of one pass over the data, and of the run.
        base_rate: the learning rate after warmup, scaled with the batch.
        warmup_steps: over which it rises.
        ess_targets: (epoch, target) in order of time.
    """

    steps_per_epoch: int
    total_steps: int
    base_rate: float
    warmup_steps: int
    ess_targets: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, config: TrainConfig, steps_per_epoch: int) -> Schedule:
        total_steps = config.steps or max(1, round(config.epochs * steps_per_epoch))
        return cls(
            steps_per_epoch=steps_per_epoch,
            total_steps=total_steps,
            base_rate=scaled_learning_rate(config.learning_rate, config.batch_size, config.lr_scaling),
            warmup_steps=min(round(config.warmup_epochs * steps_per_epoch), total_steps),
            ess_targets=tuple(config.ess_targets),
        )

    def apply(self, train_step: TrainStep, step: int) -> float:
        """Set what holds at this step; returns the learning rate."""
        share = warmup_cosine(step, total_steps=self.total_steps, warmup_steps=self.warmup_steps)
        set_learning_rate(train_step.optimizer, self.base_rate, share)
        if len(self.ess_targets) > 1:
            for control in train_step.objective.controls:
                control.target = scheduled_target(self.ess_targets, step / self.steps_per_epoch)
        return self.base_rate * share


def scheduled_target(targets: Sequence[tuple[float, float]], epoch: float) -> float:
    """
    >>> scheduled_target([(0, 0.5), (10, 0.3)], 5.0)
    0.4
    """
    epochs, values = zip(*targets, strict=True)
    return float(np.interp(epoch, epochs, values))
