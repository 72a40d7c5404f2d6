"""What changes with the step by plan: the learning rate, the target of ESS control and the sizes of views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flatclr.optim import scaled_learning_rate, set_learning_rate, warmup_cosine
from flatclr.training.config import TrainConfig
from flatclr.training.inputs import ImageViews
from flatclr.training.step import TrainStep
from flatclr.training.view_groups import Groups, ViewPlan


@dataclass(frozen=True)
class Schedule:
    """How long a run is, and what holds at each of its steps.

    Args:
        steps_per_epoch, total_steps: of one pass over the data, and of the run.
        base_rate: the learning rate after warmup, scaled with the batch.
        warmup_steps: over which it rises.
        ess_targets: (epoch, target) in order of time.
        view_plan: (epoch, groups of views) in order of time, with their sizes; nothing for paired data.
    """

    steps_per_epoch: int
    total_steps: int
    base_rate: float
    warmup_steps: int
    ess_targets: tuple[tuple[float, float], ...]
    view_plan: ViewPlan = ()

    @classmethod
    def of(cls, config: TrainConfig, steps_per_epoch: int, view_plan: ViewPlan = ()) -> Schedule:
        total_steps = config.steps or max(1, round(config.epochs * steps_per_epoch))
        return cls(
            steps_per_epoch=steps_per_epoch,
            total_steps=total_steps,
            base_rate=scaled_learning_rate(config.learning_rate, config.batch_size, config.lr_scaling),
            warmup_steps=min(round(config.warmup_epochs * steps_per_epoch), total_steps),
            ess_targets=tuple(config.ess_targets),
            view_plan=view_plan,
        )

    def apply(self, train_step: TrainStep, step: int) -> float:
        """Set what holds at this step; returns the learning rate."""
        share = self._share(step)
        set_learning_rate(train_step.optimizer, self.base_rate, share)
        if len(self.ess_targets) > 1:
            for control in train_step.objective.controls:
                control.target = scheduled_target(self.ess_targets, step / self.steps_per_epoch)
        if isinstance(train_step.inputs, ImageViews) and len(self.view_plan) > 1:
            train_step.inputs = replace(train_step.inputs, groups=self.groups_at(step))
        return self.base_rate * share

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        return self.base_rate * self._share(step)

    def _share(self, step: int) -> float:
        return warmup_cosine(step, total_steps=self.total_steps, warmup_steps=self.warmup_steps)

    def groups_at(self, step: int) -> Groups:
        """The views of a step."""
        return [groups for epoch, groups in self.view_plan if self._first_step(epoch) <= step][-1]

    def groups_from(self, step: int) -> list[Groups]:
        """All that hold at this step or later in the run, each once, in order of time."""
        later = [groups for epoch, groups in self.view_plan if step < self._first_step(epoch) < self.total_steps]
        return list(dict.fromkeys([self.groups_at(step), *later]))

    @property
    def never_reached(self) -> list[float]:
        """Epochs of changes that come after the last step."""
        return [epoch for epoch, _ in self.view_plan if self._first_step(epoch) >= self.total_steps]

    def _first_step(self, epoch: float) -> int:
        return round(epoch * self.steps_per_epoch)


def scheduled_target(targets: Sequence[tuple[float, float]], epoch: float) -> float:
    """
    >>> scheduled_target([(0, 0.5), (10, 0.3)], 5.0)
    0.4
    """
    epochs, values = zip(*targets, strict=True)
    return float(np.interp(epoch, epochs, values))
