"""Signs of life and forecasts."""

from __future__ import annotations

import pytest

from flatclr.training import progress
from flatclr.training.events import Event, Progressed
from flatclr.training.progress import Forecaster, SignsOfLife


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def forecaster(**changes: object) -> Forecaster:
    settings = {"total_steps": 1000, "on_cpu": True, "size": 96, "encoder": "resnet18"} | changes
    made = Forecaster(settings.pop("total_steps"), **settings)  # type: ignore[arg-type]
    made.begin(1)
    return made


def test_a_sign_of_life_is_given_at_most_once_a_second(clock: list[float]) -> None:
    told: list[Event] = []
    signs = SignsOfLife(told.append)
    for moment in (100.2, 100.9, 101.0, 101.5, 102.5):
        clock[0] = moment
        signs("evaluation", int(10 * moment), 2000)

    assert told == [Progressed(0, "evaluation", 1010, 2000), Progressed(0, "evaluation", 1025, 2000)]


def test_a_forecast_is_the_pace_of_the_first_steps_and_the_evaluations_to_come(clock: list[float]) -> None:
    made = forecaster()
    clock[0] = 102.0
    assert made.after(5, synchronised=False, evaluations=2, evaluation_s=30) is None  # two seconds tell too little
    clock[0] = 104.0
    told = made.after(5, synchronised=False, evaluations=2, evaluation_s=30)

    assert told is not None
    assert told.seconds == 995 * (4.0 / 4) + 2 * 30
    assert told.sentence == "about 18 min to go, by the pace of 4 steps."
    assert made.after(6, synchronised=True, evaluations=2, evaluation_s=30) is None  # it is said once


def test_steps_that_a_gpu_may_still_be_at_are_no_measure(clock: list[float]) -> None:
    made = forecaster(on_cpu=False)
    clock[0] = 150.0
    assert made.after(40, synchronised=False, evaluations=0, evaluation_s=0) is None
    assert made.after(51, synchronised=True, evaluations=0, evaluation_s=0) is not None


@pytest.mark.parametrize(
    ("changes", "way"),
    [
        ({}, "for a shorter run --image-size 48 (about a quarter of the time) or --encoder cnn or fewer --epochs."),
        ({"size": 28, "encoder": "cnn"}, "for a shorter run fewer --epochs."),
        ({"size": None, "encoder": "mlp"}, "for a shorter run fewer --epochs."),
        ({"on_cpu": False}, "by the pace of 10 steps."),
    ],
)
def test_a_long_run_on_a_cpu_gets_a_suggestion(changes: dict[str, object], way: str, clock: list[float]) -> None:
    made = forecaster(**changes)
    clock[0] = 150.0
    told = made.after(11, synchronised=True, evaluations=0, evaluation_s=0)

    assert told is not None
    assert told.sentence.startswith("about 83 min to go")
    assert told.sentence.endswith(way)
