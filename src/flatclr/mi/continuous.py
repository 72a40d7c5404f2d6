"""Continuous columns: closed-form families, neighbours, a critic and learned densities, by what held-out rows say.

1. Copula families (Gaussian, Student, Gaussian after undoing spirals) are fitted to the training rows and compared by
   the InfoNCE bound their log ratio reaches on the validation rows. A richer family must win clearly.
2. Moments of pairs of columns, neighbours in up to ten columns, and beyond four a residual network trained on top of
   the family, tell whether the family misses anything; near the ceiling of bounds, where none could, densities do.
3. If nothing is missed, the family's plug-in value of all rows is the answer. Otherwise it is that of neighbours in the
   few directions that correlate, or of learned densities, unless neighbours or the critic's bound see clearly more.

No choice looks at the evaluation rows. The lower bound that is certified is read from them alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from flatclr.mi.arrays import Array, Integers
from flatclr.mi.autoregressive import ROWS_PER_INPUT
from flatclr.mi.canonical import CanonicalColumns, correlating_pairs
from flatclr.mi.copula import FAMILIES, Copula, refitted
from flatclr.mi.critics import anchored
from flatclr.mi.entropies import learn_entropies
from flatclr.mi.families import family_bound, plug_in, refutes
from flatclr.mi.held_out import cross_fitted, seeded, to_tensors, train_critic
from flatclr.mi.inputs import few_rows
from flatclr.mi.learning_curve import LearningCurve, first_quarter, quarters, random_parts, subsampled_error
from flatclr.mi.neighbours import KSG_1, NEIGHBOUR_COLUMNS, run_neighbours
from flatclr.mi.noiseless import keeps_rising
from flatclr.mi.outcome import INTERACTION, MethodOptions, Outcome, Reading, certified, outcome_of
from flatclr.mi.splits import Split
from flatclr.mi.variational import InfoNCE

FEW_DIMENSIONS = 4  # of x and y together: neighbours are hard to beat
_CLEAR = 2.0  # standard errors
_VERY_CLEAR = 3.0  # of neighbours above a family that rows confirm: at less, independence is misread too often
_OUTLIERS = 0.01  # of rows: beyond the training rows margins are a guess, which heavier tails forgive
_HIDDEN = 1.5  # nats below its ceiling from where a bound cannot tell families apart
_MISFIT = 0.1  # of a value whose family is only near; twice that where rows are too few to see what it misses
_SIMULATED = 0x51  # keeps simulated rows from repeating a user's
_LEAST_GAIN = 0.01  # nats
_ENOUGH_ROWS = 1000  # of validation, to tell families apart
_PARTS, _FEWEST_ROWS_A_PART = 10, 50  # of the rows, for the spread of neighbours
_ROWS_PER_COLUMN_TO_LEARN = 1000  # from; uniform noise in 10 + 10 columns reads a third low in 100 rows a column
_FEWEST_ROWS = 120  # to train on, below which a fourth of them teaches nothing
_CRITICS_CURVE, _FOLDS = "see how the critic gains from rows", "cross-fit"


@dataclass(frozen=True)
class Look:
    """What one way of reading the information finds on rows that may decide, and how it would then answer."""

    name: str
    nats: float
    standard_error: float
    finish: Callable[[], Outcome]
    gain_nats: float | None  # from the last three fourths of the rows; None where it was not measured

    def sees_more_than(self, nats: float, standard_error: float, clear: float = _CLEAR) -> bool:
        return self.nats - nats > clear * math.hypot(self.standard_error, standard_error)

    def __str__(self) -> str:
        return f"{self.name} {self.nats:.3f}"


@dataclass(frozen=True)
class _Bound:
    """What a critic on top of a family reaches on evaluation rows and on validation, and what rows taught it."""

    outcome: Outcome
    validation: Reading
    gain_nats: float | None = None

    @property
    def rise(self) -> LearningCurve:
        return LearningCurve(self.validation.nats, self.gain_nats)

    def carried_on(self) -> Outcome:
        """The value where the curve leads: no bound any more, with the curve's error."""
        rise = self.rise
        nats = max(self.outcome.nats, 0.0) + rise.carried_on_nats
        return replace(self.outcome, nats=nats, kind="neither", second_order=rise.systematic_error)


def choose_continuous(x: Array, y: Array, split: Split, options: MethodOptions) -> Outcome:
    """A family's plug-in value where nothing sees more than it, else the best of what was learned or lies near."""
    budget, width = options.budget, x.shape[1] + y.shape[1]
    few = width <= FEW_DIMENSIONS
    budget.tell("copula families")
    family, copula, validation = _best_family(x, y, split)
    budget.tell("neighbours" if width <= NEIGHBOUR_COLUMNS else "critic", validation.nats)
    refuted = refutes(validation, copula, np.random.default_rng([options.seed, _SIMULATED]))
    claim = validation.nats if refuted else max(validation.nats, copula.plug_in_nats)
    reached = f"the {family} copula reaches {validation.nats:.3f} nats on validation"
    near = _look_near(x, y, split, options) if width <= NEIGHBOUR_COLUMNS else None
    more = near is not None and near.sees_more_than(claim, validation.standard_error, _VERY_CLEAR)
    hidden = claim > validation.ceiling_nats - _HIDDEN
    seen = _seen(split)
    misfit = not copula.fits(x[seen], y[seen])
    if few and not (refuted or more or hidden or misfit):
        return _plugged_in(family, copula, x, y, split, f"{reached} and neighbours see no more.", near)

    budget.tell("critic", None if near is None else near.nats)
    bound = _learn_bound(copula, x, y, split, options)
    suffices = not (refuted or more or _clearly_above(bound.validation, validation, _LEAST_GAIN))
    if suffices and not (hidden or misfit):
        told = f"{reached} and a residual network adds nothing."
        return _plugged_in(family, copula, x, y, split, told, _look_by_critic(family, bound, x, y, split, options))

    if not hidden:  # where a ceiling hides what rows teach
        bound = _with_curve(bound, copula, x, y, split, options)
    critic = _look_by_critic(family, bound, x, y, split, options)
    budget.tell("densities", critic.nats)
    learned = look_by_densities(x, y, split, options)
    narrow = None if few else _look_narrow(family, copula, x, y, split, options)
    order: tuple[Look | None, ...] = (narrow, learned, near, critic)
    if few:  # where neighbours are hard to beat
        order = (near, learned, critic)
    elif budget.ended:  # what was not learned to its end stands back
        order = (narrow, critic, near, learned)
    looks = [look for look in order if look is not None]
    best = _clearest(looks)
    by_cap = hidden and best is critic and claim > critic.nats  # what a ceiling limits is no estimate
    beats = best.nats > claim if misfit else best is learned and best.sees_more_than(claim, validation.standard_error)
    if by_cap or (suffices and not beats):
        limit = ", which the logarithm of its rows limits" if hidden else ""
        return _plugged_in(family, copula, x, y, split, f"{reached}{limit}; {_listed(looks)}.", learned or critic)
    found = _answered_by(best, reached, looks, bound.outcome.certified_nats, near)
    if len(x) < ROWS_PER_INPUT * width:  # of which only the correlations of a family have an error
        found = replace(found, second_order=math.inf)
    return replace(found, warnings=(*found.warnings, *_few_to_learn(found, len(x), width)))


def _clearest(looks: list[Look]) -> Look:
    """The first, unless a later one sees clearly more."""
    best = looks[0]
    for other in looks[1:]:
        if other.sees_more_than(best.nats, best.standard_error):
            best = other
    return best


def _listed(looks: list[Look]) -> str:
    return ", ".join(map(str, looks))


def _answered_by(best: Look, reached: str, looks: list[Look], certified_nats: float, near: Look | None) -> Outcome:
    """Its answer; a critic certifies a lower bound whatever answers, and neighbours tell where noise is missing.

    Readings of what is hard to see are low rather than high, so that a higher one which is not clear widens the error.
    """
    runner_up = max((look for look in looks if look is not best), key=lambda look: look.nats, default=best)
    found, higher = best.finish(), max(runner_up.nats - best.nats, 0.0)
    found = replace(found, second_order=math.hypot(found.second_order, higher / 2))
    if near is not None and _without_noise(near, best):
        assert near.gain_nats is not None
        warning = (
            f"neighbours see {near.nats - near.gain_nats:.2f} nats in a fourth of the rows, {near.nats:.2f} in all: "
            "one variable may determine the other without noise, and the information may be infinite."
        )
        found = replace(found, second_order=math.inf, warnings=(*found.warnings, warning))
    return replace(
        found,
        reason=f"{reached}; {_listed(looks)}.",
        runner_up=str(runner_up),
        lower_nats=certified_nats,
    )


def _without_noise(near: Look, best: Look) -> bool:
    """Whether neighbours rise with the rows as they do without noise, and nothing that sees more has ceased to."""
    explained = best.sees_more_than(near.nats, near.standard_error, _VERY_CLEAR) and not _rises(best, 0.0)
    return _rises(near, near.standard_error) and not explained


def _rises(look: Look, error: float) -> bool:
    """Whether it sees ever more in more rows; of one whose gain is not known, that it may."""
    return look.gain_nats is None or keeps_rising(look.nats, look.nats - look.gain_nats, error)


def _few_to_learn(found: Outcome, rows: int, columns: int) -> tuple[str, ...]:
    """A warning where a dependence that is no family's is read with an error from few rows; else none."""
    if rows >= _ROWS_PER_COLUMN_TO_LEARN * columns or not math.isfinite(found.second_order):
        return ()
    told = f"no family fits, and {rows} rows are few to learn what {columns} columns share"
    return (f"{told}: the value may be low by more than its error.",)


def _plugged_in(
    family: str, copula: Copula, x: Array, y: Array, split: Split, reason: str, runner_up: Look | None
) -> Outcome:
    """The plug-in value of all rows, and what the family's bound certifies on evaluation rows."""

    def again(x: Array, y: Array) -> Outcome:
        return plug_in(refitted(FAMILIES[family](x[split.train], y[split.train]), x, y), x, y)

    bound, whole = family_bound(copula, x, y, split.evaluation), refitted(copula, x, y)
    found = plug_in(whole, x, y)
    if not whole.fits(x, y):
        share = _MISFIT * (2 if few_rows(len(x), x.shape[1] + y.shape[1]) else 1)
        told = f"pairs of columns do not look {family} although nothing sees more; the error is widened by {share:.0%}."
        error = math.hypot(found.second_order, share * found.nats)
        found = replace(found, second_order=error, warnings=(*found.warnings, told))
    return replace(
        found,
        method=family,
        reason=reason,
        again=again,
        lower_nats=certified(bound.nats, bound.standard_error),
        runner_up=str(runner_up),
    )


def _seen(split: Split) -> Integers:
    """The rows that choices look at."""
    return np.concatenate([split.train, split.validation])


def _look_near(x: Array, y: Array, split: Split, options: MethodOptions) -> Look:
    seen = _seen(split)
    found, less_nats = _with_fourths(x[seen], y[seen], options)

    def finish() -> Outcome:
        return replace(_neighbours(x, y, options), method="ksg", again=lambda x, y: _neighbours(x, y, options))

    return Look("neighbours", found.nats, found.standard_error, finish, found.nats - less_nats)


def _look_narrow(family: str, copula: Copula, x: Array, y: Array, split: Split, options: MethodOptions) -> Look | None:
    """Neighbours in the few directions that correlate, on rows which those were not found on; None: there are none."""
    pairs = correlating_pairs(copula)
    if not pairs:
        return None
    narrowed = CanonicalColumns.of(copula, pairs)
    found, less_nats = _with_fourths(*narrowed(x[split.validation], y[split.validation]), options)
    unseen = np.concatenate([split.validation, split.evaluation])

    def again(x: Array, y: Array) -> Outcome:
        own = CanonicalColumns.of(FAMILIES[family](x[split.train], y[split.train]), pairs)
        found = _neighbours(*own(x[unseen], y[unseen]), options)
        lost = _MISFIT * max(found.nats, 0.0)  # what other directions may hold
        return replace(found, second_order=math.hypot(found.second_order, lost))

    def finish() -> Outcome:
        return replace(again(x, y), method="ksg of canonical columns", again=again)

    gain_nats = found.nats - less_nats
    return Look("neighbours in canonical columns", found.nats, found.standard_error, finish, gain_nats)


def _neighbours(x: Array, y: Array, options: MethodOptions) -> Outcome:
    """Neighbours of all rows, carried on; their error is the spread over parts of the rows, as neighbours interact."""
    found, less_nats = _with_fourths(x, y, options)
    rise = LearningCurve(found.nats, found.nats - less_nats)
    if len(x) >= _PARTS * _FEWEST_ROWS_A_PART:
        spread = subsampled_error(_readings(x, y, random_parts(len(x), _PARTS, options.seed), options))
    else:
        spread = INTERACTION * found.standard_error
    beyond = math.sqrt(max(spread**2 - found.standard_error**2, 0.0))  # what the spread of the terms does not show
    return replace(
        found, nats=found.nats + rise.carried_on_nats, second_order=math.hypot(beyond, rise.systematic_error)
    )


def _with_fourths(x: Array, y: Array, options: MethodOptions) -> tuple[Outcome, float]:
    """What neighbours see in all rows, and on average in fourths of them; of few rows, the same."""
    found = run_neighbours(KSG_1, x, y, options)
    readings = _readings(x, y, quarters(len(x), options.seed), options)
    return found, float(np.mean(readings)) if readings else found.nats


def _readings(x: Array, y: Array, parts: list[Integers], options: MethodOptions) -> list[float]:
    return [run_neighbours(KSG_1, x[part], y[part], options).nats for part in parts]


def _learn_bound(copula: Copula, x: Array, y: Array, split: Split, options: MethodOptions) -> _Bound:
    return _Bound(*learn_residual(copula, x, y, split, options))


def _with_curve(bound: _Bound, copula: Copula, x: Array, y: Array, split: Split, options: MethodOptions) -> _Bound:
    """The bound, and what it gained from three fourths of the training rows where there are rows and time to see."""
    if len(split.train) < _FEWEST_ROWS or options.budget.over(leaves=_CRITICS_CURVE):
        return bound
    fewer = replace(split, train=first_quarter(split.train))
    less = _learn_bound(copula, x, y, fewer, options).validation.nats
    return bound if options.budget.ended else replace(bound, gain_nats=bound.validation.nats - max(less, 0.0))


def _look_by_critic(family: str, bound: _Bound, x: Array, y: Array, split: Split, options: MethodOptions) -> Look:
    def once(x: Array, y: Array, split: Split) -> Outcome:
        copula = FAMILIES[family](x[split.train], y[split.train])
        learned = _learn_bound(copula, x, y, split, options)
        return _with_curve(learned, copula, x, y, split, options).carried_on()

    def finish() -> Outcome:
        found = finished(bound.carried_on, once, x, y, split, options)
        return replace(found, method=f"infonce, anchored on {family}")

    # others are compared with the bound as it is, which holds whatever the curve
    return Look("a critic's bound", bound.validation.nats, bound.validation.standard_error, finish, bound.gain_nats)


def finished(
    first: Callable[[], Outcome],
    once: Callable[[Array, Array, Split], Outcome],
    x: Array,
    y: Array,
    split: Split,
    options: MethodOptions,
) -> Outcome:
    """What was learned to choose by, or learned again in every fold where there is time for all of them.

    On other variables of these rows likewise.
    """

    def crossed(x: Array, y: Array) -> Outcome | None:
        if options.folds == 1 or options.budget.over(leaves=_FOLDS):
            return None
        found = cross_fitted(lambda fold: once(x, y, fold), len(x), options)
        return None if options.budget.over(leaves=_FOLDS) else found  # what was cut short has learned too little

    def again(x: Array, y: Array) -> Outcome:
        return crossed(x, y) or once(x, y, split)

    return replace(crossed(x, y) or first(), again=again)


def look_by_densities(x: Array, y: Array, split: Split, options: MethodOptions) -> Look | None:
    """None where no time is left for them, or rows are too few even for the regressions that they start from."""
    if len(split.train) < ROWS_PER_INPUT * (x.shape[1] + y.shape[1]) or options.budget.over(leaves="learn densities"):
        return None
    learned = learn_entropies(x, y, split, options)
    nats = learned.validation.nats + learned.rise.carried_on_nats
    error = math.hypot(learned.validation.standard_error, learned.systematic_error)
    options.budget.tell("densities", nats)

    def once(x: Array, y: Array, split: Split) -> Outcome:
        return learn_entropies(x, y, split, options).outcome()

    def finish() -> Outcome:
        return replace(finished(learned.outcome, once, x, y, split, options), method="doe")

    return Look("densities", nats, error, finish, learned.gain_nats)


def _best_family(x: Array, y: Array, split: Split) -> tuple[str, Copula, Reading]:
    """The simplest family that no richer one beats clearly on the validation rows.

    Tails are one more number than correlations, so that where rows are few they are judged on the training rows too:
    the tails of 40 rows show nothing. Turns were sought there, and are not.
    """
    few = len(split.validation) < _ENOUGH_ROWS
    seen = np.concatenate([split.train, split.validation]) if few else split.validation
    best, copula = "gaussian", FAMILIES["gaussian"](x[split.train], y[split.train])
    for name, rows in (("student", seen), ("spiral", split.validation)):
        other = FAMILIES[name](x[split.train], y[split.train])
        richer, simpler = (family_bound(each, x, y, rows) for each in (other, copula))
        if _clearly_above(richer, simpler, _LEAST_GAIN / 2, trim=_OUTLIERS):
            best, copula = name, other
    return best, copula, family_bound(copula, x, y, split.validation)


def _clearly_above(reading: Reading, other: Reading, least: float, trim: float = 0.0) -> bool:
    """By more than chance on the same rows, and by enough to matter; `trim` of the rows on either side do not count."""
    gain = (reading.values - other.values).sort().values
    cut = int(trim * len(gain))
    gain = gain[cut : len(gain) - cut]
    return float(gain.mean()) > max(_CLEAR * float(gain.std()) / math.sqrt(len(gain)), least)


def learn_residual(copula: Copula, x: Array, y: Array, split: Split, options: MethodOptions) -> tuple[Outcome, Reading]:
    """The anchored critic's value on evaluation rows, and its reading on validation."""
    parts = to_tensors(copula, x, y, split)
    with seeded(options.seed) as generator:
        critic = anchored(copula, x.shape[1], y.shape[1], hidden=options.settings.hidden)
        learner, curve = train_critic(InfoNCE, critic, parts, options, generator)
    validation = learner.read(*parts.validation)
    return outcome_of(learner.read(*parts.evaluation), validation, curve, kind="lower"), validation
