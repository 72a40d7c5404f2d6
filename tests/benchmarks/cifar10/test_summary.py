"""Differences, intervals, correlations and minutes of CIFAR-10 against scipy and definitions."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from benchmarks.cifar10 import kept, summary
from benchmarks.cifar10.plan import FULL, planned
from flatclr.diagnostics import gradient_snr
from flatclr.evaluation.intervals import Score
from flatclr.evaluation.results import TRAINED
from flatclr.training.instruments import SNR_FLOOR
from tests.support.cifar10 import EVALUATION_SECONDS, leave_run


def cell_of(values: list[float], *, batch: int = 32) -> summary.Cell:
    """A cell whose runs have these accuracies, and intervals of no width."""

    class Known(kept.KeptRun):
        def score(self, protocol: str, weights: str = TRAINED, *, name: str | None = None) -> Score:
            value = float(self.path.name)
            return Score(value, value, value)

    return summary.Cell("an objective", batch, 1, (), tuple(Known(Path(repr(value))) for value in values))


def test_a_difference_of_two_cells_has_the_interval_of_the_two_sample_t_test() -> None:
    a, b = [0.71, 0.72, 0.74], [0.69, 0.70]
    one, other = cell_of(a), cell_of(b)

    found = summary.difference(one, other, "knn", summary.pooled_spread([one, other], "knn"))

    known = scipy.stats.ttest_ind(a, b).confidence_interval()
    assert found is not None
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=1e-5)


def test_the_mean_of_a_cell_has_the_interval_of_the_t_test() -> None:
    values = [0.71, 0.72, 0.74]
    cell = cell_of(values)

    found = summary.mean_accuracy(cell, "knn", summary.pooled_spread([cell], "knn"))

    known = scipy.stats.ttest_1samp(values, 0).confidence_interval()
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx(
        (statistics.fmean(values), known.low, known.high), abs=1e-5
    )


def test_differences_that_are_read_together_have_intervals_that_hold_together() -> None:
    one, other, third = (cell_of(values) for values in ([0.71, 0.72], [0.69, 0.70], [0.65, 0.68]))
    spread = {name: summary.pooled_spread([one, other, third], name) for name in ("knn", "linear")}
    judge = summary.Judge.over([(one, other), (one, third), (other, cell_of([]))], spread)
    rng = np.random.default_rng(0)
    deviation, seeds, freedom = 1.0, 2, spread["knn"].freedom
    means = rng.normal(size=(4000, 8, 2)) * deviation / math.sqrt(seeds)
    found = deviation * np.sqrt(rng.chisquare(freedom, size=4000) / freedom)
    half = summary.Spread(1.0, freedom).half_width(seeds, seeds, comparisons=8)

    assert judge.comparisons == 4
    single, together = (judge_of.difference(one, other, "knn") for judge_of in (summary.Judge(spread, 1), judge))
    assert single is not None
    assert together is not None
    assert together.low < single.low < single.high < together.high
    wrong = (np.abs(means[..., 0] - means[..., 1]).max(1) > half * found).mean()
    assert wrong <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.parametrize("truth", [0.0, 0.3, 1.0])
def test_signal_to_noise_loses_its_floor(truth: float) -> None:
    rng, size = torch.Generator().manual_seed(0), 2000
    signal = torch.zeros(size)
    signal[0] = truth * math.sqrt(size)  # noise has a norm of about sqrt(size)
    drawn = [gradient_snr(signal + torch.randn(8, size, generator=rng)) for _ in range(60)]
    run: Any = SimpleNamespace(logs=[{"step": 1}], metrics=[{"step": 1, "gradient_snr": value} for value in drawn])

    found = summary.signal_to_noise([run])

    assert found is not None
    assert found**2 == pytest.approx(truth**2, abs=0.005 + 0.02 * truth)
    if truth == 0:
        assert statistics.fmean(value for value in drawn if value is not None) == pytest.approx(SNR_FLOOR, rel=0.01)


def test_one_seed_gives_no_interval_of_a_difference() -> None:
    one, other = cell_of([0.7]), cell_of([0.6])

    found = summary.difference(one, other, "knn", summary.pooled_spread([one, other], "knn"))

    assert found is not None
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def random_checkpoints(copies: int = 1) -> list[summary.Checkpoint]:
    rng = np.random.default_rng(0)
    points = []
    for run in range(12):
        start = rng.normal()
        for _ in range(4):
            x, y, noise = start + rng.normal(size=3)
            points += copies * [summary.Checkpoint(str(run), f"objective {run}", 32, 1, 2, y, x, noise)]
    return points


def test_correlations_are_those_of_scipy() -> None:
    points = random_checkpoints()
    x, y = ([getattr(p, name) for p in points] for name in ("pool_mi_nats", "knn"))

    found = summary.correlation(points, "pool_mi_nats")

    assert found is not None
    assert found.pearson.value == pytest.approx(scipy.stats.pearsonr(x, y).statistic)
    assert found.spearman.value == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    assert found.pearson.low < found.pearson.value < found.pearson.high


def test_more_checkpoints_of_the_same_runs_do_not_narrow_the_interval_of_a_correlation() -> None:
    once, often = (summary.correlation(random_checkpoints(copies), "pool_mi_nats") for copies in (1, 5))

    assert once is not None
    assert often is not None
    assert (often.pearson.low, often.pearson.high) == pytest.approx((once.pearson.low, once.pearson.high))


def test_few_cells_give_a_correlation_without_an_interval() -> None:
    points = [replace(point, objective="one") for point in random_checkpoints()]

    found = summary.correlation(points, "pool_mi_nats")

    assert found is not None
    assert found.runs == 12
    assert math.isfinite(found.pearson.value)
    assert math.isnan(found.pearson.low)
    assert summary.correlation(points[:8], "pool_mi_nats") is None


def test_what_correlates_by_time_alone_does_not_at_equal_epochs() -> None:
    rng = np.random.default_rng(0)
    points = [
        summary.Checkpoint(str(run), f"objective {run}", 32, number, 12, *(number + rng.normal(size=3)))
        for run in range(16)
        for number in range(1, 13)
    ]
    all_, equal = (summary.correlation(group, "pool_mi_nats") for group in (points, summary.at_equal_epochs(points)))

    assert all_ is not None
    assert equal is not None
    assert all_.pearson.low > 0.85
    assert abs(equal.pearson.value) < 3 / math.sqrt(len(points))
    assert equal.points == len(points)


def test_minutes_are_those_of_the_clock_with_and_without_evaluations(tmp_path: Path) -> None:
    run = planned(["fast"], FULL, FULL.starting_rates)[0]
    leave_run(tmp_path / "results", run, 0.9)
    found = summary.times(kept.kept_runs(tmp_path / "results")[run.name])

    assert found[-1].wall == 10.0 + run.steps + EVALUATION_SECONDS
    assert found[-1].training == pytest.approx(found[-1].wall - 8 * EVALUATION_SECONDS)
    reached = summary.first_reaching(found, 0.80)
    assert reached is not None
    assert reached == next(time for time in found if 0.9 * (0.5 + 0.5 * time.epoch / 20) >= 0.80)
    assert summary.first_reaching(found, 0.95) is None
    assert summary.ending_at(found, 0.80) == found[-1]
    assert summary.ending_at([*found[:-1], replace(found[-1], knn=0.79)], 0.80) is None


def test_the_wall_counts_what_a_stopped_process_spent() -> None:
    rows = [
        {"kind": "process", "does": "train", "seconds": 0.0},
        {"kind": "log", "step": 5, "seconds": 18.0},
        {"kind": "evaluation", "step": 5, "seconds": 20.0},
        {"kind": "log", "step": 7, "seconds": 30.0},
        {"kind": "process", "does": "train", "seconds": 0.0},
        {"kind": "log", "step": 10, "seconds": 11.0},
        {"kind": "evaluation", "step": 10, "seconds": 12.0},
        {"kind": "process", "does": "eval", "seconds": 0.0},
        {"kind": "row", "seconds": 15.0},
    ]

    assert summary._spent(rows) == {5: (20.0, 2.0), 10: (42.0, 3.0)}
