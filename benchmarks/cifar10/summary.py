"""Numbers of several runs: means with intervals, differences, correlations, times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, t

from benchmarks.cifar10.kept import KeptRun
from benchmarks.cifar10.plan import PlannedRun
from flatclr.evaluation.intervals import Score
from flatclr.training.instruments import SNR_BATCHES

RESAMPLES = 1000
FEWEST_RUNS, FEWEST_CELLS = 3, 8  # for a correlation, and for its interval
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
        groups.setdefault((run.objective, run.batch, run.steps), []).append(run)
    return [
        Cell(*key, tuple(group), tuple(kept[run.name] for run in group if run.name in kept))
        for key, group in groups.items()
    ]


@dataclass(frozen=True)
class Spread:
    """Standard deviation over seeds, from many cells together: one has too few seeds for its own."""

    deviation: float
    freedom: int

    def half_width(self, *seeds: int, comparisons: int = 1) -> float:
        """Half of the 95 % interval of a mean over so many seeds, or of the difference of two; NaN without freedom.

        Of several comparisons all intervals hold together with 95 % (Bonferroni).
        """
        if not self.freedom:
            return math.nan
        quantile = float(t.ppf(1 - 0.025 / comparisons, self.freedom))
        return quantile * self.deviation * math.sqrt(sum(1 / n for n in seeds))


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
    seeds = spread.half_width(len(scores)) if spread.freedom else 0.0
    low, high = mean - math.hypot(seeds, mean - low), mean + math.hypot(seeds, high - mean)
    return Score(mean, max(0.0, low), min(1.0, high))


def difference(one: Cell, other: Cell, protocol: str, spread: Spread, *, comparisons: int = 1) -> Score | None:
    """Mean of `one` less that of `other` on the same test images; the interval is over seeds."""
    a, b = one.values(protocol), other.values(protocol)
    if not a or not b:
        return None
    value = statistics.fmean(a) - statistics.fmean(b)
    half = spread.half_width(len(a), len(b), comparisons=comparisons)
    return Score(value, value - half, value + half)


@dataclass(frozen=True)
class Judge:
    """Differences of cells that are read together: with 95 % all of their intervals hold."""

    spread: Mapping[str, Spread]  # by protocol
    comparisons: int

    @classmethod
    def over(cls, pairs: Sequence[tuple[Cell, Cell]], spread: Mapping[str, Spread]) -> Judge:
        """Of these pairs by every protocol; what was not run is not counted."""
        made = [p for one, other in pairs for p in spread if one.values(p) and other.values(p)]
        return cls(spread, max(1, len(made)))

    def difference(self, one: Cell, other: Cell, protocol: str) -> Score | None:
        return difference(one, other, protocol, self.spread[protocol], comparisons=self.comparisons)


def gauge(runs: Sequence[KeptRun], name: str) -> float | None:
    """Mean of a gauge over the last quarter of the runs."""
    found = [value for run in runs for value in _last_values(run, name)]
    return statistics.fmean(found) if found else None


def signal_to_noise(runs: Sequence[KeptRun]) -> float | None:
    """Of the gradient over the last quarter, without what noise alone gives.

    From B batches, E SNR^2 = B / (B - 1) (snr^2 + 1 / B), so where there is no signal it still reads 1 / sqrt(B - 1).
    """
    found = [value**2 for run in runs for value in _last_values(run, "gradient_snr")]
    if not found:
        return None
    batches = SNR_BATCHES
    return math.sqrt(max(0.0, (batches - 1) / batches * statistics.fmean(found) - 1 / batches))


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
    number: int  # of the evaluation
    of: int  # evaluations of the run
    knn: float
    pool_mi_nats: float
    batch_mi_nats: float

    @property
    def is_last(self) -> bool:
        return self.number == self.of

    @property
    def cell(self) -> tuple[str, int, int]:
        """Runs that differ in their seeds alone have it in common."""
        return self.objective, self.batch, self.of


def checkpoints(run: KeptRun, objective: str) -> list[Checkpoint]:
    found, before = [], 0
    for number, row in enumerate(run.evaluations, start=1):
        logged = [log["mi_nats"] for log in run.logs if before < log["step"] <= row["step"]]
        numbers = (row["knn"], row["pool_mi_best_nats"], statistics.fmean(logged)) if logged else ()
        if numbers and all(isinstance(number, float) for number in numbers):  # what was not finite is text
            place = (number, len(run.evaluations))
            found.append(Checkpoint(run.name, objective, run.config.batch_size, *place, *numbers))
        before = row["step"]
    return found


@dataclass(frozen=True)
class Correlation:
    pearson: Score
    spearman: Score
    points: int
    runs: int


def correlation(points: Sequence[Checkpoint], name: str, *, seed: int = 0) -> Correlation | None:
    """Of kNN accuracy with a quantity; None below 3 runs.

    95 % by a bootstrap that draws whole cells: checkpoints of one run are not independent of each other, nor are runs
    that differ in their seeds alone. Below 8 cells it would be too narrow, and there is none.
    """
    runs = len({point.run for point in points})
    if runs < FEWEST_RUNS:
        return None
    groups = [np.array([[getattr(p, name), p.knn] for p in group]) for group in _by(points, "cell").values()]
    rng, count = np.random.default_rng(seed), len(groups)
    resamples = RESAMPLES if count >= FEWEST_CELLS else 0
    drawn = [np.concatenate([groups[i] for i in rng.integers(count, size=count)]) for _ in range(resamples)]
    whole = np.concatenate(groups)
    return Correlation(
        _interval(pearson(whole), [pearson(sample) for sample in drawn]),
        _interval(pearson(rankdata(whole, axis=0)), [pearson(rankdata(sample, axis=0)) for sample in drawn]),
        len(whole),
        runs,
    )


def at_equal_epochs(points: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Each less the mean over all runs of its length at its time: what is left has no time in it."""
    numbers = ("knn", "pool_mi_nats", "batch_mi_nats")
    found = []
    for group in _by(points, "number", "of").values():
        means = {name: statistics.fmean(getattr(point, name) for point in group) for name in numbers}
        found += [
            replace(point, **{name: getattr(point, name) - means[name] for name in numbers})
            for point in group
            if len(group) > 1
        ]
    return found


def _by(points: Sequence[Checkpoint], *names: str) -> dict[tuple[Any, ...], list[Checkpoint]]:
    groups: dict[tuple[Any, ...], list[Checkpoint]] = {}
    for point in points:
        groups.setdefault(tuple(getattr(point, name) for name in names), []).append(point)
    return groups


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
    wall: float  # everything since the command was given
    evaluating: float  # of these

    @property
    def training(self) -> float:
        """With start, compilation, capture, augmentation, gauges and checkpoints."""
        return self.wall - self.evaluating


def times(run: KeptRun) -> list[Time]:
    """At each evaluation, from the clock kept beside the run."""
    spent = _spent(run.clock)
    return [Time(row["epoch"], row["knn"], *spent[row["step"]]) for row in run.evaluations if row["step"] in spent]


def _spent(clock: Sequence[Mapping[str, Any]]) -> dict[int, tuple[float, float]]:
    """(wall, evaluating) to the end of each evaluation; what processes spent that were stopped before counts too.

    An evaluation begins at the row before it, the log of its step.
    """
    found, earlier, last, evaluating, does = dict[int, tuple[float, float]](), 0.0, 0.0, 0.0, ""
    for row in clock:
        if row["kind"] == "process":
            earlier, last, does = earlier + last, 0.0, row["does"]
        if row["kind"] == "evaluation" and does == "train":
            evaluating += row["seconds"] - last
            found[row["step"]] = (earlier + row["seconds"], evaluating)
        last = row["seconds"]
    return found


def first_reaching(found: Sequence[Time], knn: float) -> Time | None:
    return next((time for time in found if time.knn >= knn), None)


def ending_at(found: Sequence[Time], knn: float) -> Time | None:
    """The end of a run that has this accuracy there, whatever it had before."""
    return found[-1] if found and found[-1].knn >= knn else None
