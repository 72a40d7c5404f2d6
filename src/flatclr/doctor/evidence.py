"""What an examination looks at: the rows of metrics and the settings of a run, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from flatclr.doctor.thresholds import LATE_SHARE, NEAR_ITS_BEST, RISEN_NATS, STILL_RISING
from flatclr.objectives import OBJECTIVES, Traits
from flatclr.objectives.critics import COSINE

LOG, EVALUATION = "log", "evaluation"


@dataclass(frozen=True)
class Series:
    """One metric over the steps, finite values alone.

    Args:
        steps: at which it was measured, in order.
        values: as many.

    >>> Series((1, 2, 3, 4), (4.0, 3.0, 2.0, 2.5)).late
    2.5
    """

    steps: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.values)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def first(self) -> float:
        return self.values[0]

    @property
    def last(self) -> float:
        return self.values[-1]

    @property
    def late(self) -> float:
        """The median of the last quarter."""
        return median(self.values[-self._window :])

    @property
    def early(self) -> float:
        """The median of the first quarter."""
        return median(self.values[: self._window])

    def after(self, step: float) -> Series:
        """What was measured after a step."""
        kept = [(s, v) for s, v in zip(self.steps, self.values, strict=True) if s > step]
        return Series(tuple(s for s, _ in kept), tuple(v for _, v in kept))

    def since(self, step: float) -> Series:
        """What was measured from a step on, with the value that stood then; empty where it was measured later only."""
        before = sum(measured <= step for measured in self.steps)
        return Series(self.steps[before - 1 :], self.values[before - 1 :]) if before else Series()

    @property
    def _window(self) -> int:
        return max(1, round(LATE_SHARE * len(self.values)))


@dataclass(frozen=True)
class Evidence:
    """What is known of a run.

    Args:
        rows: of metrics.jsonl, or of a table of one's own with the same names; `kind` says whether a row was logged or
            evaluated.
        settings: of the run, by name; of a run of another library those that are known.
        left_open: the names of those that were left to the run, which chose them.
        run: its directory; None where there is none.

    >>> evidence = Evidence([{"step": 1, "kind": "log", "loss": 2.0}, {"step": 2, "kind": "log", "loss": 1.5}])
    >>> evidence.series("loss").last
    1.5
    """

    rows: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    left_open: frozenset[str] = frozenset()
    run: str | None = None

    def series(self, name: str) -> Series:
        """A metric over the steps; empty where it was not measured."""
        if name not in self._series:
            found = [(row.get("step", place), number(row[name])) for place, row in enumerate(self.rows) if name in row]
            finite = [(float(step), value) for step, value in found if math.isfinite(value)]
            self._series[name] = Series(tuple(step for step, _ in finite), tuple(value for _, value in finite))
        return self._series[name]

    def late(self, name: str) -> float | None:
        """The median of a metric's last quarter; None where it was not measured."""
        series = self.series(name)
        return series.late if series else None

    def last(self, name: str) -> float | None:
        """A metric's last value; None where it was not measured."""
        series = self.series(name)
        return series.last if series else None

    @property
    def still_rises(self) -> bool:
        """Whether the bound rises yet: a good part of it came in the second half, and the end is no fall.

        >>> rows = [{"step": step, "pool_mi_best_nats": nats} for step, nats in ((0, 0.0), (50, 0.1), (100, 0.2))]
        >>> Evidence(rows).still_rises
        True
        """
        shared = self.second_half("pool_mi_best_nats")
        if not shared:
            return False
        risen = shared.last - shared.first
        return risen >= max(RISEN_NATS, STILL_RISING * shared.last) and shared.last >= NEAR_ITS_BEST * max(
            shared.values
        )

    def second_half(self, name: str) -> Series:
        """A metric from the middle of the run on, with the value that stood there."""
        return self.series(name).since(self.steps / 2)

    @property
    def steps(self) -> float:
        """How many the run took."""
        return max((number(row.get("step", 0)) for row in self.rows), default=0.0)

    @property
    def learning_rate(self) -> float | None:
        """That of the settings, or else the highest that was logged; None where neither is known."""
        found, logged = self.settings.get("learning_rate"), self.series("learning_rate")
        if isinstance(found, int | float):
            return float(found)
        return max(logged.values) if logged else None

    @property
    def negatives(self) -> float | None:
        """How many each anchor has, by the ceiling of its bound."""
        ceiling = self.late("ceiling_nats")
        return None if ceiling is None else math.exp(ceiling) - 1

    @property
    def objective(self) -> str | None:
        """Its name; None where it is not known."""
        found = self.settings.get("objective")
        return found if isinstance(found, str) else None

    @property
    def traits(self) -> Traits | None:
        """What is registered of its objective; None where that is not known, or came from Python."""
        kind = OBJECTIVES.get(self.objective or "")
        return None if kind is None else kind.traits_with(**self._objective_options)

    @property
    def has_critic(self) -> bool:
        """Whether a network scores the pairs: the scale of its scores is its own, and no temperature's."""
        return bool(self._objective_options.get("critic", COSINE) != COSINE)

    @property
    def _objective_options(self) -> Mapping[str, Any]:
        options = self.settings.get("objective_options")
        return options if isinstance(options, Mapping) else {}

    @property
    def is_controlled(self) -> bool:
        """Whether an ESS controller sets the temperature."""
        return bool(self.series("beta_clamped"))

    @cached_property
    def _series(self) -> dict[str, Series]:
        return {}


def number(value: Any) -> float:
    """A number, 0 or 1 of true or false, and NaN of anything else.

    >>> number(True), number("inf")
    (1.0, nan)
    """
    return float(value) if isinstance(value, int | float) else math.nan
