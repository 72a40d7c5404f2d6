"""Numbers of several runs: means with intervals, differences, correlations, times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from benchmarks.cifar10.kept import KeptRun
from benchmarks.cifar10.plan import PlannedRun
from flatclr.evaluation.intervals import Score, student

RESAMPLES = 1000
LAST_SHARE = 0.25  # of a run, over which gauges are averaged
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """The runs of one objective at one batch size and length: they differ in their seeds."""

    objective: str
    batch: int
    steps: int
    planned: tuple[PlannedRun, ...]
    runs: tuple[KeptRun, ...]

    @property
    def seeds(self) -> list[int]:
        return sorted(run.config.seed for run in self.runs)

    def scores(self, protocol: str) -> list[Score]:
        return [score for run in self.runs if (score := run.score(protocol)) is not None]

    def values(self, protocol: str) -> list[float]:
        return [score.value for score in self.scores(protocol)]


def cells(planned: Sequence[PlannedRun], kept: Mapping[str, KeptRun]) -> list[Cell]:
    """The plan by objective, batch size and length, with the runs that are there."""
    groups: dict[tuple[str, int, int], list[PlannedRun]] = {}
    for run in planned:
        groups.setdefault((run.objective, run.settings["batch_size"], run.settings["steps"]), []).append(run)
    return [
        Cell(*key, tuple(group), tuple(kept[run.name] for run in group if run.name in kept))
        for key, group in groups.items()
    ]


@dataclass(frozen=True)
class Spread:
    """Standard deviation over seeds, from many cells together: one has too few seeds for its own."""

    deviation: float
    freedom: int

    @property
    def factor(self) -> float:
        """Half of a 95 % interval of a mean, times the root of its seeds."""
        return student(self.freedom) * self.deviation if self.freedom else 0.0


def pooled_spread(table: Sequence[Cell], protocol: str) -> Spread:
    """s^2 = sum_c sum_i (x_ci - mean_c)^2 / sum_c (n_c - 1)"""
    values = [found for cell in table if (found := cell.values(protocol))]
    freedom = sum(len(found) - 1 for found in values)
    squares = sum((x - statistics.fmean(found)) ** 2 for found in values for x in found)
    return Spread(math.sqrt(squares / freedom) if freedom else 0.0, freedom)


def mean_accuracy(cell: Cell, protocol: str, spread: Spread) -> Score | None:
    """Mean over seeds; the interval covers seeds, by the pooled spread, and test images, in square."""
    scores = cell.scores(protocol)
    if not scores:
        return None
    mean, low, high = (statistics.fmean(getattr(s, part) for s in scores) for part in ("value", "low", "high"))
    seeds = spread.factor / math.sqrt(len(scores))
    low, high = mean - math.hypot(seeds, mean - low), mean + math.hypot(seeds, high - mean)
    return Score(mean, max(0.0, low), min(1.0, high))


def difference(one: Cell, other: Cell, protocol: str, spread: Spread) -> Score | None:
    """Mean of `one` less that of `other` on the same test images; the interval is over seeds."""
    a, b = one.values(protocol), other.values(protocol)
    if not a or not b:
        return None
    value = statistics.fmean(a) - statistics.fmean(b)
    half = spread.factor * math.sqrt(1 / len(a) + 1 / len(b)) if spread.freedom else math.nan
    return Score(value, value - half, value + half)


def gauge(runs: Sequence[KeptRun], name: str) -> float | None:
    """Mean of a gauge over the last quarter of the runs."""
    found = [value for run in runs for value in _last_values(run, name)]
    return statistics.fmean(found) if found else None


def _last_values(run: KeptRun, name: str) -> list[float]:
    since = (1 - LAST_SHARE) * run.logs[-1]["step"]
    return [row[name] for row in run.metrics if row["step"] > since and isinstance(row.get(name), float)]


def last_evaluation(runs: Sequence[KeptRun], name: str) -> float | None:
    found = [run.evaluations[-1][name] for run in runs]
    return statistics.fmean(found) if found else None


@dataclass(frozen=True)
class Checkpoint:
    """One evaluation within a run. `batch_mi_nats` is the mean over the batches logged since the one before."""

    run: str
    objective: str
    batch: int
    last: bool
    knn: float
    pool_mi_nats: float
    batch_mi_nats: float


def checkpoints(run: KeptRun, objective: str) -> list[Checkpoint]:
    found, before = [], 0
    for row in run.evaluations:
        logged = [log["mi_nats"] for log in run.logs if before < log["step"] <= row["step"]]
        numbers = (row["knn"], row["pool_mi_best_nats"], statistics.fmean(logged)) if logged else ()
        if numbers and all(isinstance(number, float) for number in numbers):  # what was not finite is text
            is_last = row is run.evaluations[-1]
            found.append(Checkpoint(run.name, objective, run.config.batch_size, is_last, *numbers))
        before = row["step"]
    return found


@dataclass(frozen=True)
class Correlation:
    pearson: Score
    spearman: Score
    points: int
    runs: int


def correlation(points: Sequence[Checkpoint], name: str, *, seed: int = 0) -> Correlation | None:
    """Of kNN accuracy with a quantity; 95 % by a bootstrap that draws whole runs. None below 3 runs.

    Checkpoints of one run are not independent of each other.
    """
    by_run: dict[str, list[Checkpoint]] = {}
    for point in points:
        by_run.setdefault(point.run, []).append(point)
    if len(by_run) < 3:
        return None
    groups = [np.array([[getattr(p, name), p.knn] for p in group]) for group in by_run.values()]
    rng = np.random.default_rng(seed)
    drawn = [np.concatenate([groups[i] for i in rng.integers(len(groups), size=len(groups))]) for _ in range(RESAMPLES)]
    whole = np.concatenate(groups)
    return Correlation(
        _interval(pearson(whole), [pearson(sample) for sample in drawn]),
        _interval(pearson(rankdata(whole, axis=0)), [pearson(rankdata(sample, axis=0)) for sample in drawn]),
        len(whole),
        len(groups),
    )


def pearson(pairs_N2: Floats) -> float:
    """Correlation of two columns; NaN where one is constant.

    >>> pearson(np.array([[0.0, 1.0], [1.0, 3.0], [2.0, 5.0]]))
    1.0
    """
    centred = pairs_N2 - pairs_N2.mean(0)
    scale = math.sqrt((centred[:, 0] ** 2).sum() * (centred[:, 1] ** 2).sum())
    return float((centred[:, 0] * centred[:, 1]).sum() / scale) if scale > 0 else math.nan


def _interval(value: float, resampled: Sequence[float]) -> Score:
    finite = [x for x in resampled if math.isfinite(x)]
    low, high = np.quantile(finite, [0.025, 0.975]) if finite else (math.nan, math.nan)
    return Score(value, float(low), float(high))


@dataclass(frozen=True)
class Time:
    """Seconds of a run up to an evaluation."""

    epoch: float
    knn: float
    training: float  # steps, with augmentation and checkpoints, without evaluation and gauges
    wall: float  # everything since the command was given


def times(run: KeptRun) -> list[Time]:
    """At each evaluation, from the logged rates and from the clock kept beside the run."""
    training, before, spent = {}, 0, 0.0
    for row in run.logs:
        spent += (row["step"] - before) * run.config.batch_size / row["images_per_second"]
        before = row["step"]
        training[before] = spent
    walls = _walls(run.clock)
    return [
        Time(row["epoch"], row["knn"], training[row["step"]], walls[row["step"]])
        for row in run.evaluations
        if row["step"] in training and row["step"] in walls
    ]


def _walls(clock: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Seconds to each evaluation; those of processes that were stopped before count too."""
    found, earlier, last, does = dict[int, float](), 0.0, 0.0, ""
    for row in clock:
        if row["kind"] == "process":
            earlier, last, does = earlier + last, 0.0, row["does"]
        last = row["seconds"]
        if row["kind"] == "evaluation" and does == "train":
            found[row["step"]] = earlier + last
    return found


def first_reaching(found: Sequence[Time], knn: float) -> Time | None:
    return next((time for time in found if time.knn >= knn), None)
