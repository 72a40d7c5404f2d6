"""Steps that are tried before a run: they tell its pace and leave no trace."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from flatclr.data import Dataset, ResidentImages
from flatclr.training import Forecast, Progressed, Started, trial
from flatclr.training.build import build
from flatclr.training.events import Event
from flatclr.training.progress import Pace
from flatclr.training.trainer import train
from flatclr.training.trial import TRIAL_STEPS, evaluation_s, trial_pace
from tests.support.images import color_png
from tests.support.training_worker import config

IMAGES = torch.randint(256, (80, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
DATA = Dataset("mine", ResidentImages(IMAGES), None)
TWO_SIZES = {"size_schedule": [[0, [[2, 20], [1, 16]]], [0.2, [[1, 24], [3, 12]]]]}  # others from the third step on
KINDS: dict[str, dict[str, Any]] = {
    "controlled": {"encoder_options": {"width": 8}},  # with batch normalisation, which keeps statistics
    "queue": {"objective": "infonce", "temperature": 0.2, "queue": 32, "momentum": 0.9, "pairing": "one_way"},
    "sizes that change": {"objective": "sogclr", "temperature": 0.2, "optimizer": "lars"} | TWO_SIZES,
    "drawn negatives": {"negatives_per_anchor": 3, "ess_target": None, "temperature": 0.2, "objective": "infonce"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_after_a_trial_is_the_same_bit_for_bit(kind: str, tmp_path: Path) -> None:
    finished = []
    for tried in (False, True):
        parts = build(config(tmp_path, 200, **KINDS[kind]), data=DATA)
        before = deepcopy(parts.train_step.state_dict())
        if tried:
            pace = trial_pace(parts, 0)
            assert pace is not None
            assert pace.steps == TRIAL_STEPS - 1
            torch.testing.assert_close(parts.train_step.state_dict(), before, rtol=0, atol=0)
        for step, batch in parts.loader.steps(0, 3):
            parts.schedule.apply(parts.train_step, step)
            parts.train_step(batch, step)
        finished.append(deepcopy(parts.train_step.state_dict()) | {"drawn": torch.rand(3)})

    torch.testing.assert_close(finished[0], finished[1], rtol=0, atol=0)
    assert any(bool((finished[0]["network"][n] != before["network"][n]).any()) for n in before["network"])


def test_a_trial_that_runs_out_of_memory_leaves_its_line_to_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = build(config(tmp_path, 200), data=DATA)
    before = deepcopy(parts.train_step.state_dict())

    def too_large(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(trial, "_tried", too_large)
    assert trial_pace(parts, 0) is None
    torch.testing.assert_close(parts.train_step.state_dict(), before, rtol=0, atol=0)


def test_short_runs_and_images_that_are_read_as_training_goes_are_not_tried(tmp_path: Path) -> None:
    assert trial_pace(build(config(tmp_path, 99), data=DATA), 0) is None
    assert trial_pace(build(config(tmp_path, 200), data=DATA), 150) is None
    for number in range(16):
        color_png(tmp_path / "photos" / f"{number}.png", size=12)
    read = {"data": str(tmp_path / "photos"), "resident_gib": 0.0, "workers": 1}
    assert trial_pace(build(config(tmp_path, 200, **read)), 0) is None


def test_a_step_that_takes_long_is_measure_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "LONG_STEP_S", 0.0)
    told: list[tuple[str, int, int]] = []
    pace = trial_pace(build(config(tmp_path, 200), data=DATA), 0, lambda *sign: told.append(sign))

    assert pace is not None
    assert pace.steps == 1
    assert told == [("measuring the pace", 1, TRIAL_STEPS)]


def test_an_evaluation_is_forecast_by_the_images_it_looks_at(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 200, eval_samples=60), data=DATA)
    assert evaluation_s(parts, 0.3) == pytest.approx(4 * 60 * 0.1 / 16)  # 16 views a step, a third of it forward


def test_the_first_line_says_how_long_the_run_will_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatclr.training.loop.trial_pace", lambda *_: Pace(150.0, 3))
    told: list[Event] = []
    train(config(tmp_path / "run", 4, eval_every=2), data=DATA, on_event=[told.append], progress=False)
    started, forecast = [event for event in told if not isinstance(event, Progressed)][:2]

    assert isinstance(started, Started)
    assert started.summary.endswith("4 in all, CPU: about 44 min")  # 10 of steps, and two evaluations
    assert isinstance(forecast, Forecast)
    assert started.seconds == forecast.seconds == pytest.approx(4 * 150 + 2 * 4 * 80 * 50 / 16)
    assert forecast.advice == "for a shorter run fewer --epochs"
    assert len([event for event in told if isinstance(event, Forecast)]) == 1


def test_nobody_pays_for_a_forecast_that_nobody_hears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr("flatclr.training.loop.trial_pace", lambda *_: tried.append(1))
    train(config(tmp_path / "run", 2), data=DATA, progress=False)
    assert tried == []
