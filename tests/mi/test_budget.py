"""A budget ends an estimate at fixed points, and steps repeat it without a clock."""

import numpy as np
import pytest

from flatclr.mi import FAST, FitSettings, Progress, estimate, tasks
from flatclr.mi.budget import Budget

UNFAMILIAR = tasks.sheared(tasks.gaussian_pairs(3))


def test_steps_of_a_result_repeat_it():
    x, y = UNFAMILIAR.sample(600, seed=0)
    settings = FitSettings(steps=400, hidden=32, check_every=20, patience=20)
    clocked = estimate(x, y, "infonce", settings=settings, budget_seconds=0.2)
    again = estimate(x, y, "infonce", settings=settings, steps=clocked.steps)

    assert again == clocked
    assert clocked.more_time == "train longer"
    assert any("more time would train longer" in warning for warning in clocked.warnings)


def test_steps_of_a_result_that_had_time_enough_repeat_it():
    x, y = UNFAMILIAR.sample(400, seed=0)
    settings = FitSettings(steps=60, hidden=16, check_every=20)
    free = estimate(x, y, "doe", settings=settings, budget_seconds=None)

    assert estimate(x, y, "doe", settings=settings, steps=free.steps) == free
    assert free.more_time == ""


def test_every_end_of_a_budget_is_a_function_of_its_steps():
    x, y = UNFAMILIAR.sample(400, seed=0)
    settings = FitSettings(steps=40, hidden=8, check_every=20)
    for steps in (1, 30, 80, 10_000):
        first, second = (estimate(x, y, settings=settings, steps=steps) for _ in range(2))
        assert first == second
        assert first.steps <= steps


def test_progress_names_stages_and_the_best_value_so_far():
    seen: list[Progress] = []
    estimate(*UNFAMILIAR.sample(400, seed=0), settings=FAST, progress=seen.append)

    assert [each.stage for each in seen][:2] == ["copula families", "neighbours"]
    values = [each.best_nats for each in seen if each.best_nats is not None]
    assert values == sorted(values)
    assert all(np.diff([each.seconds for each in seen]) >= 0)


def test_a_budget_that_is_over_stays_over():
    budget = Budget(seconds=1e-9)

    assert budget.over(leaves="rest")
    assert budget.over(after=5, leaves="rest")
    assert (budget.steps_done, budget.undone) == (0, ["rest"])


@pytest.mark.parametrize(("option", "value"), [("budget_seconds", 0), ("budget_seconds", -1), ("steps", 0)])
def test_a_budget_must_be_positive(option: str, value: float):
    with pytest.raises(ValueError, match=option):
        estimate(*UNFAMILIAR.sample(100, seed=0), **{option: value})
