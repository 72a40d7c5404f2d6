"""95 % intervals: over test samples, over groups of them, over draws."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flatclr.data.loading import seeded_generator

RESAMPLES = 1000
GROUPS = 20
ENTRIES_AT_ONCE = 2**23
NORMAL = 1.959964
# 97.5 % quantile of Student's t by degrees of freedom; beyond, a series
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
Statistic = Callable[[Tensor], Tensor]  # weights of the samples [B, N] -> values [B]


@dataclass(frozen=True)
class Score:
    """A number with its 95 % interval.

    Args:
        value: the number.
        low: the lower end.
        high: the upper end.

    >>> Score(0.9, low=0.85, high=0.94).value
    0.9
    """

    value: float
    low: float
    high: float


def bootstrap(statistic: Statistic, samples: int, *, device: torch.device | None = None, seed: int = 0) -> Score:
    """Percentile bootstrap over test samples; the statistic takes how often each sample was drawn.

    Where all resamples give 0, or all give 1, the far end is the exact binomial one (Clopper & Pearson 1934).

    >>> round(bootstrap(mean_of(torch.ones(50)), 50).low, 4), round(0.025 ** (1 / 50), 4)
    (0.9289, 0.9289)
    """
    generator = seeded_generator(seed, "bootstrap")
    parts, at_once = [], max(1, ENTRIES_AT_ONCE // samples)
    for start in range(0, RESAMPLES, at_once):
        rows = min(at_once, RESAMPLES - start)
        drawn_BN = torch.randint(samples, (rows, samples), generator=generator)
        counts_BN = torch.zeros(rows, samples).scatter_add_(1, drawn_BN, torch.ones(rows, samples))
        parts.append(statistic(counts_BN.to(device)).double().cpu())
    value = statistic(torch.ones(1, samples, device=device)).double().item()
    low, high = torch.cat(parts).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return as_share(Score(value, low, high), samples)


def mean_of(values_N: Tensor) -> Statistic:
    """The weighted mean as a statistic."""
    values_N = values_N.float()
    return lambda weights_BN: weights_BN @ values_N / weights_BN.sum(1)


def jackknife(
    statistics_of: Callable[[Tensor], Mapping[str, float]],
    samples: int,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Score]:
    """Estimates ± t standard errors from leaving out one of 20 groups at a time; the function takes sample numbers.

    For what depends on pairs of samples: a bootstrap would draw samples twice, and a copy is its own neighbour.
    """
    order = torch.randperm(samples, generator=seeded_generator(seed, "jackknife"))
    parts = order.tensor_split(min(GROUPS, samples))
    whole, left_out = statistics_of(order), list[Mapping[str, float]]()
    for out in range(len(parts)):
        left_out.append(statistics_of(torch.cat([part for i, part in enumerate(parts) if i != out])))
        if progress is not None:
            progress(out + 1, len(parts))
    scores = {}
    for name, value in whole.items():
        error = math.sqrt((len(parts) - 1) * statistics.pvariance([found[name] for found in left_out]))
        half = student(len(parts) - 1) * error
        scores[name] = Score(value, value - half, value + half)
    return scores


def largest_group(samples: int) -> int:
    """How many samples `jackknife` leaves out at once, at most."""
    return math.ceil(samples / GROUPS)


def as_share(score: Score, samples: int) -> Score:
    """The interval within 0 and 1; where all samples agree, the far end is the exact binomial one."""
    if score.low == score.value == score.high and score.value in (0, 1):
        unseen = 1 - 0.025 ** (1 / samples)
        return Score(score.value, score.value * (1 - unseen), score.value + (1 - score.value) * unseen)
    return Score(score.value, max(0.0, score.low), min(1.0, score.high))


def wilson(share: float, samples: int) -> Score:
    """A share of independent samples with its score interval, which holds for few of them too (Wilson 1927).

    >>> round(wilson(1.0, 10).low, 4)
    0.7225
    """
    shrunk = NORMAL**2 / samples
    centre, scale = share + shrunk / 2, 1 + shrunk
    half = NORMAL * math.sqrt(share * (1 - share) / samples + shrunk / (4 * samples))
    return Score(share, max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale))


def student(freedom: int) -> float:
    """97.5 % quantile of Student's t: a table, and beyond it the series in 1 / freedom (Fisher & Cornish 1960).

    >>> round(student(19), 3), round(student(100), 3)
    (2.093, 1.984)
    """
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z, n = NORMAL, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


def over_draws(scores: Sequence[Score], pooled: Score) -> Score:
    """The mean over draws: Student's t between them, and in square the test samples' share, from `pooled`.

    `pooled` is the bootstrap of every sample's mean over the draws.
    """
    values = [score.value for score in scores]
    mean, freedom = statistics.fmean(values), len(values) - 1
    if freedom == 0:
        return pooled
    between = student(freedom) * statistics.stdev(values) / math.sqrt(len(values))
    below, above = mean - pooled.low, pooled.high - mean
    return Score(mean, mean - math.hypot(between, below), mean + math.hypot(between, above))
