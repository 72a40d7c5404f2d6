"""The sets of tasks: what they draw, and what is refused."""

import numpy as np
import pytest

from flatclr.mi import tasks

ALL = {**tasks.tuning_tasks(), **tasks.benchmark_tasks(), **tasks.unfamiliar_tasks()}


@pytest.mark.parametrize("name", ALL)
def test_samples_have_the_stated_shapes_and_follow_the_seed(name: str):
    task = ALL[name]
    x, y = task.sample(60, seed=3)
    again, other = task.sample(60, seed=3), task.sample(60, seed=4)

    assert x.shape == (60, task.dim_x)
    assert y.shape == (60, task.dim_y)
    assert np.isfinite(x).all()
    assert np.isfinite(y).all()
    np.testing.assert_array_equal(x, again[0])
    np.testing.assert_array_equal(y, again[1])
    assert not np.array_equal(x, other[0])


def test_the_tasks_judged_on_are_others_than_those_tuned_on():
    tuned = {(task.name, round(task.mi_nats, 9)) for task in tasks.tuning_tasks().values()}
    judged = {(task.name, round(task.mi_nats, 9)) for task in tasks.benchmark_tasks().values()}

    assert not tuned & judged
    assert len(judged) >= 22


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tasks.gaussian_pairs(2, pairs=3), "pairs must be a whole number >= 1 and <= 2, got 3"),
        (lambda: tasks.gaussian_pairs(2, correlation=1.0), "correlation must be a finite number > -1 and < 1, got 1"),
        (lambda: tasks.student(1, 1, 0), "df must be a finite number > 0, got 0"),
        (lambda: tasks.spiral(tasks.additive_uniform(0.1)), "a spiral must have at least 2 coordinates, got 1 and 1"),
        (lambda: tasks.circular(1, 0.5), "noise must be a finite number > 0 and < 0.5, got 0.5"),
        (lambda: tasks.sign_mixture(1, 1.0), "correlation must be a finite number > -1 and < 1, got 1"),
        (lambda: tasks.gaussian_pairs(2).sample(0, seed=0), "n must be a whole number >= 1, got 0"),
    ],
)
def test_impossible_tasks_are_refused(call: object, message: str):
    with pytest.raises(ValueError, match=message):
        call()
