"""How a claim is judged: by an interval against a threshold, in one of three words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flatclr.evaluation.intervals import Score, student

HELD, FAILED, OPEN, NOT_RUN = "held", "did not hold", "cannot be told here", "not run"
WORDS = (HELD, FAILED, OPEN, NOT_RUN)


@dataclass(frozen=True)
class Verdict:
    """What a study says of a claim.

    Args:
        word: "held", "did not hold", "cannot be told here" or "not run".
        says: what was measured, in one sentence.
        measured: the number that decided, with its 95 % interval, where there is one.
        unit: of that number.

    >>> Verdict("held", "The gap falls.", Score(2.0, 1.5, 2.5), "nats").number
    '2.00 [1.50, 2.50] nats'
    """

    word: str
    says: str
    measured: Score | None = None
    unit: str = ""

    @property
    def number(self) -> str:
        """The number with its interval, "" where there is none."""
        return "" if self.measured is None else f"{score_text(self.measured)} {self.unit}".strip()


def mean_score(values: Sequence[float]) -> Score:
    """The mean over seeds with Student's 95 % interval; one value alone has none.

    >>> mean_score([1.0, 2.0, 3.0]).value, round(mean_score([1.0, 2.0, 3.0]).low, 2)
    (2.0, -0.48)
    >>> math.isnan(mean_score([1.0]).low)
    True
    """
    mean = statistics.fmean(values)
    if len(values) < 2 or not math.isfinite(mean):
        return Score(mean, math.nan, math.nan)
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Score(mean, mean - half, mean + half)


@dataclass(frozen=True)
class Spread:
    """How far runs that differ in their seeds alone lie apart, from several arms together.

    Args:
        deviation: the standard deviation.
        freedom: its degrees of freedom.

    >>> score = Spread(0.1, 10).difference([2.0, 2.2], [1.0])
    >>> round(score.value, 3), round(score.high - score.value, 3)
    (1.1, 0.273)
    """

    deviation: float
    freedom: int

    def difference(self, one: Sequence[float], other: Sequence[float], *, comparisons: int = 1) -> Score:
        """Of two means with its 95 % interval; without one where no arm has two seeds.

        Of one of several comparisons the intervals are wider, so that all of them cover together (Bonferroni).
        """
        value = statistics.fmean(one) - statistics.fmean(other)
        if not self.freedom:
            return Score(value, math.nan, math.nan)
        from scipy.stats import t

        quantile = float(t.ppf(1 - 0.025 / comparisons, self.freedom))
        half = quantile * self.deviation * math.sqrt(1 / len(one) + 1 / len(other))
        return Score(value, value - half, value + half)


def pooled_spread(arms: Sequence[Sequence[float]]) -> Spread:
    """s^2 = sum_a sum_i (x_ai - mean_a)^2 / sum_a (n_a - 1): two seeds of one arm have too wide an interval alone.

    An arm with a run that stopped, which has no accuracy, is left out.

    >>> pooled_spread([[1.0, 3.0], [5.0], [2.0, 2.0], [math.nan, 1.0]])
    Spread(deviation=1.0, freedom=2)
    """
    known = [values for values in arms if values and all(map(math.isfinite, values))]
    freedom = sum(len(values) - 1 for values in known)
    squares = sum((x - statistics.fmean(values)) ** 2 for values in known for x in values)
    return Spread(math.sqrt(squares / freedom) if freedom else 0.0, freedom)


def above(score: Score, threshold: float = 0.0) -> str:
    """Held where the whole interval is above the threshold, did not hold where it is below; else it cannot be told.

    >>> above(Score(2.0, 1.0, 3.0)), above(Score(2.0, -1.0, 5.0)), above(Score(-2.0, -3.0, -1.0))
    ('held', 'cannot be told here', 'did not hold')
    >>> above(Score(2.0, math.nan, math.nan))
    'cannot be told here'
    """
    if score.low > threshold:
        return HELD
    return FAILED if score.high < threshold else OPEN


def below(score: Score, threshold: float = 0.0) -> str:
    """As `above`, on the other side.

    >>> below(Score(-2.0, -3.0, -1.0))
    'held'
    """
    return above(negated(score), -threshold)


def together(words: Sequence[str]) -> str:
    """Of a claim with several parts: one that did not hold decides, then one that cannot be told.

    >>> together(["held", "did not hold", "cannot be told here"]), together(["held", "cannot be told here"])
    ('did not hold', 'cannot be told here')
    """
    return next((word for word in (NOT_RUN, FAILED, OPEN) if word in words), HELD)


def every(alone: Sequence[Score], among: Sequence[Score], threshold: float = 0.0) -> str:
    """Of a claim that several numbers must bear out, each of them above the threshold.

    To hold, each must be above it by its own interval. Not to hold, one must be below it by the interval that it has
    among so many (`among`, in the same order): else one of many equals is below by chance.

    >>> near, wide = Score(-1.0, -1.9, -0.1), Score(-1.0, -2.2, 0.2)
    >>> every([near], [near]), every([near, near], [wide, wide])
    ('did not hold', 'cannot be told here')
    """
    if all(above(score, threshold) == HELD for score in alone):
        return HELD
    return FAILED if any(above(score, threshold) == FAILED for score in among) else OPEN


def negated(score: Score) -> Score:
    """The same of the difference taken the other way round."""
    return Score(-score.value, -score.high, -score.low)


def exactly(holds: bool) -> str:
    """Of arithmetic, where nothing is drawn at random.

    >>> exactly(True)
    'held'
    """
    return HELD if holds else FAILED


def score_text(score: Score, digits: int = 2) -> str:
    """A number with its interval as pages show it.

    >>> score_text(Score(1.0, math.nan, math.nan)), score_text(Score(1.0, 0.5, 1.5), 1)
    ('1.00', '1.0 [0.5, 1.5]')
    """
    if math.isnan(score.low):
        return f"{score.value:.{digits}f}"
    return f"{score.value:.{digits}f} [{score.low:.{digits}f}, {score.high:.{digits}f}]"
