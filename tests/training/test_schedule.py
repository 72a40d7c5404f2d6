"""Targets of the effective sample size follow their schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flatclr.training.build import build
from flatclr.training.config import TrainConfig
from flatclr.training.recorder import Recorder
from flatclr.training.step import StepResult
from flatclr.training.stepping import Stepper, choose_step
from flatclr.training.trainer import fit
from tests.support.training_worker import config


def test_ess_targets_follow_their_schedule(tmp_path: Path) -> None:
    schedule = [[0, 0.6], [8 / 1250, 0.2]]  # eight steps of 1,250 in an epoch
    parts = build(config(tmp_path, 12, ess_target=schedule))
    targets: list[float] = []

    def watched(*given: Any) -> Stepper:
        stepper = choose_step(*given)

        def take(step: int) -> StepResult:
            targets.append(parts.train_step.objective.scale.control.target)  # type: ignore[union-attr]
            return stepper.take(step)

        return Stepper(take)

    fit(Recorder(parts), make_step=watched)
    expected = [max(0.6 - 0.05 * step, 0.2) for step in range(12)]
    assert targets == pytest.approx(expected)


@pytest.mark.parametrize("schedule", [[], [0.5, 0.2], [[0, 0.5, 1]], "high"])
def test_a_schedule_of_another_form_is_refused(schedule: Any) -> None:
    with pytest.raises(ValueError, match=r"ess_target must be a number or \[\[epoch, target\], ...\]"):
        TrainConfig(ess_target=schedule)
