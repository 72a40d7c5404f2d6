"""Information as a difference of two entropies, both from densities that are learned: I = H(y) - H(y | x).

Neither a bound from below nor from above: too poor a q(y | x) reads low, too poor a q(y) reads high. The first is the
harder to learn, so the value rises with the rows. How it rises from a fourth of them is carried on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from flatclr.mi.arrays import Array, Integers
from flatclr.mi.autoregressive import Density, MixtureNetwork, Regression
from flatclr.mi.fit import Curve, fit
from flatclr.mi.held_out import cross_fitted, seeded
from flatclr.mi.learning_curve import LearningCurve, first_quarter
from flatclr.mi.limits import all_pairs
from flatclr.mi.margins import RankNormal
from flatclr.mi.outcome import MethodOptions, Outcome, Reading, outcome_of
from flatclr.mi.splits import Split

_FEWEST_ROWS = 120  # to train on, below which a fourth of them teaches nothing
_LEARNING_CURVE = "see how densities gain from rows"
_UNMEASURED = (
    "how learned densities gain from more rows was not measured; the value may be low, so its error is a tenth."
)
_MISFIT = 0.02  # of the value: 9.7 to 9.8 are read of 10 nats where densities have edges
_FASTER = 3.0  # than critics, by which densities learn best


@dataclass(frozen=True)
class Entropies:
    """The value of learned densities on both held-out parts, and what it gained from the last three fourths of rows."""

    evaluation: Reading
    validation: Reading
    curve: Curve
    gain_nats: float | None  # on validation rows; None where it was not measured

    @property
    def rise(self) -> LearningCurve:
        return LearningCurve(self.validation.nats, self.gain_nats)

    @property
    def systematic_error(self) -> float:
        """That of the learning curve, and what mixtures miss with any number of rows."""
        return math.hypot(self.rise.systematic_error, _MISFIT * max(self.validation.nats, 0.0))

    def outcome(self) -> Outcome:
        """The value carried on, with its systematic error."""
        told = () if self.gain_nats is not None else (_UNMEASURED,)
        found = outcome_of(self.evaluation, self.validation, self.curve, warnings=told)
        nats = max(found.nats + self.rise.carried_on_nats, 0.0)
        return replace(found, nats=nats, second_order=self.systematic_error)


def run_doe(x: Array, y: Array, options: MethodOptions) -> Outcome:
    """The difference of entropies of the narrower variable, once or cross-fitted."""
    return cross_fitted(lambda split: learn_entropies(x, y, split, options).outcome(), len(x), options)


def learn_entropies(x: Array, y: Array, split: Split, options: MethodOptions) -> Entropies:
    """Learn q(y) and q(y | x) from the training rows, and again from a fourth of them to see how the value rises."""
    if x.shape[1] < y.shape[1]:
        x, y = y, x  # the density of the narrower variable is easier to learn
    margins_x, margins_y = (RankNormal.fit(v[split.train], smooth=True) for v in (x, y))
    x, y = margins_x(x), margins_y(y)
    validation, evaluation, curve = _read(x, y, split.train, split, options)
    unmeasured = Entropies(evaluation, validation, curve, None)
    if len(split.train) < _FEWEST_ROWS or options.budget.over(leaves=_LEARNING_CURVE):
        return unmeasured
    less, _, _ = _read(x, y, first_quarter(split.train), split, options)
    if options.budget.ended:
        return unmeasured
    return replace(unmeasured, gain_nats=validation.nats - max(less.nats, 0.0))


def _read(x: Array, y: Array, rows: Integers, split: Split, options: MethodOptions) -> tuple[Reading, Reading, Curve]:
    """The log ratio on validation and on evaluation rows. q(y) comes first: a budget that ends early then reads low."""
    marginal, _ = _learn(x[:, :0], y, rows, split, options)
    conditional, curve = _learn(x, y, rows, split, options)

    def read(part: Integers) -> Reading:
        values: Tensor = conditional.log_density(x[part], y[part]) - marginal.log_density(x[part, :0], y[part])
        return Reading(values, values, math.inf, all_pairs(len(part)))

    return read(split.validation), read(split.evaluation), curve


def _learn(x: Array, y: Array, rows: Integers, split: Split, options: MethodOptions) -> tuple[Density, Curve]:
    settings = replace(options.settings, learning_rate=_FASTER * options.settings.learning_rate)
    with seeded(options.seed) as generator:
        density = Density(Regression.fit(x[rows], y[rows]), MixtureNetwork(x.shape[1], y.shape[1], settings.hidden))
        train, validation = (density.tensors(x[part], y[part]) for part in (rows, split.validation))
        curve = fit(density.network, train, validation, settings, generator, options.budget)
    return density, tuple((step, value + density.regression.log_volume) for step, value in curve)
