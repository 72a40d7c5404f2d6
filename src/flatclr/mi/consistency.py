"""`flatclr.mi.check`: what must hold of information whatever the data, tried on the user's own rows.

Shuffled rows share nothing; a function of y adds nothing to it, and part of y has no more than all of it; two
independent pairs share the sum. Where an estimator breaks such a law, its number is off by as much at least.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from flatclr.mi.arrays import Array
from flatclr.mi.estimator import BUDGET_SECONDS, estimate
from flatclr.mi.fit import FitSettings
from flatclr.mi.inputs import FEWEST_ROWS_TO_LEARN, as_rows, require_same_rows
from flatclr.mi.result import MIEstimate

_CLEAR = 3.0  # standard errors
_LEVELS = 8  # that a single column is cut into
_CHECKED = 0xC4EC  # keeps shuffles from repeating draws of a user with the same seed


@dataclass(frozen=True)
class SelfTest:
    """One law and how the estimator kept it.

    Args:
        law: "independence", "data processing" or "additivity".
        what: was estimated.
        expected_nats: by the law; an upper limit where `at_most`.
        found_nats: the estimate.
        standard_error: of the difference.
        at_most: whether less is as good.

    >>> test = SelfTest("independence", "y shuffled", expected_nats=0.0, found_nats=0.02, standard_error=0.01)
    >>> test.deviation_nats, test.kept
    (0.02, True)
    """

    law: str
    what: str
    expected_nats: float
    found_nats: float
    standard_error: float
    at_most: bool = False

    @property
    def deviation_nats(self) -> float:
        """By how much the law is broken."""
        off = self.found_nats - self.expected_nats
        return max(off, 0.0) if self.at_most else abs(off)

    @property
    def tried(self) -> bool:
        """Whether it could have been broken: nothing breaks a law within an infinite error."""
        return math.isfinite(self.standard_error)

    @property
    def kept(self) -> bool:
        """Whether chance explains the deviation."""
        return self.deviation_nats <= _CLEAR * self.standard_error


@dataclass(frozen=True)
class Consistency:
    """An estimate, and what the laws say about it.

    Args:
        estimate: of the rows as they are.
        tests: one for each law that was tried.

    >>> x, y = flatclr.mi.tasks.gaussian_pairs(2).sample(800, seed=0)
    >>> found = flatclr.mi.check(x, y, "gaussian")
    >>> [test.law for test in found.tests if test.kept]
    ['independence', 'data processing', 'data processing', 'additivity']
    """

    estimate: MIEstimate
    tests: tuple[SelfTest, ...]

    @property
    def trusted_to_nats(self) -> float:
        """The half width of the 95 % interval, widened to what the worst broken law shows."""
        broken = max((test.deviation_nats for test in self.tests if not test.kept), default=0.0)
        return max(1.96 * self.estimate.standard_error, broken)

    def sentence(self) -> str:
        """How far to trust the number, in one sentence."""
        tried = [test for test in self.tests if test.tried]
        if self.tests and not tried:
            return "no law can be tried on so few rows: neither the number nor any of them has a finite error."
        laws = f"{sum(test.kept for test in tried)} of {len(tried)} laws hold on these rows"
        if not math.isfinite(self.trusted_to_nats):
            return f"{laws}; the number itself has no finite error."
        return f"{laws}; trust {self.estimate.nats:.3f} nats to within {self.trusted_to_nats:.3f}."

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts for JSON."""
        trusted = self.trusted_to_nats if math.isfinite(self.trusted_to_nats) else None
        tests = [{**asdict(t), "deviation_nats": t.deviation_nats, "kept": t.kept} for t in self.tests]
        for test in tests:
            test["standard_error"] = test["standard_error"] if math.isfinite(test["standard_error"]) else None
        return {"estimate": self.estimate.to_dict(), "tests": tests, "trusted_to_nats": trusted}


def check(
    x: Any,
    y: Any,
    method: str = "auto",
    *,
    seed: int = 0,
    settings: FitSettings | None = None,
    budget_seconds: float | None = BUDGET_SECONDS,
) -> Consistency:
    """Estimate, then try on the same rows what must hold of information whatever the data.

    Args:
        x, y, method, seed, settings, budget_seconds: as for `flatclr.mi.estimate`; the budget is for each estimate.

    Returns:
        The estimate and a `SelfTest` per law: independence (y shuffled: 0), data processing (a function of y added: as
        before; part of y: no more), additivity (two halves of the rows side by side: the sum of both).

    >>> x, y = flatclr.mi.tasks.gaussian_pairs(2).sample(800, seed=0)
    >>> flatclr.mi.check(x, y, "gaussian").sentence()
    '4 of 4 laws hold on these rows; trust 0.973 nats to within 0.072.'

    Reference: Song & Ermon 2020.
    """
    x, y = as_rows("x", x), as_rows("y", y)
    require_same_rows(x=x, y=y)

    def read(x: Array, y: Array) -> MIEstimate:
        return estimate(x, y, method, seed=seed, settings=settings, budget_seconds=budget_seconds)

    rng = np.random.default_rng([seed, _CHECKED])
    whole = read(x, y)
    tests = [
        _compared("independence", "y shuffled", 0.0, read(x, y[rng.permutation(len(y))])),
        _compared("data processing", "a function of y added to it", whole, read(x, _with_function(y))),
        replace(_compared("data processing", _part_name(y), whole, read(x, _part(y))), at_most=True),
    ]
    if len(x) >= 2 * FEWEST_ROWS_TO_LEARN:
        first, second = np.array_split(rng.permutation(len(x)), 2)
        first = first[: len(second)]
        stacked = read(np.hstack([x[first], x[second]]), np.hstack([y[first], y[second]]))
        halves = [read(x[rows], y[rows]) for rows in (first, second)]
        error = math.hypot(*(half.standard_error for half in halves))
        expected = replace(halves[0], nats=halves[0].nats + halves[1].nats, standard_error=error)
        tests.append(_compared("additivity", "two halves of the rows side by side", expected, stacked))
    return Consistency(whole, tuple(tests))


def _compared(law: str, what: str, expected: float | MIEstimate, found: MIEstimate) -> SelfTest:
    """Errors are added as if independent: they share rows, so that this is on the safe side of calling a law broken."""
    if isinstance(expected, MIEstimate):
        error = math.hypot(expected.standard_error, found.standard_error)
        return SelfTest(law, what, expected.nats, found.nats, error)
    return SelfTest(law, what, expected, found.nats, found.standard_error)


def _with_function(y: Array) -> Array:
    """y, and the sine of the sum of its columns in units of their deviations: nothing that y does not say already."""
    deviation = np.where(y.std(0) > 0, y.std(0), 1.0)
    return np.column_stack([y, np.sin((y / deviation).sum(1))])


def _part(y: Array) -> Array:
    """The first half of the columns; of one column, which eighth of its order a row is in."""
    if y.shape[1] > 1:
        return y[:, : (y.shape[1] + 1) // 2]
    levels = np.quantile(y[:, 0], np.arange(1, _LEVELS) / _LEVELS)
    return np.searchsorted(levels, y[:, 0]).astype(float)[:, None]


def _part_name(y: Array) -> str:
    return "half of y's columns" if y.shape[1] > 1 else f"y in {_LEVELS} levels"
