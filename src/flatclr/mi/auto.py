"""The default: closed-form families, neighbours or a learned critic, by what held-out rows say.

1. Copula families (Gaussian, Student, Gaussian after undoing spirals) are fitted to the training rows and compared by
   the InfoNCE bound their log ratio reaches on the validation rows. A richer family must win clearly.
2. In few dimensions a neighbour estimate tells whether that family misses anything; in more, a residual network
   trained on top of the family does.
3. If nothing is missed, the family's plug-in value of all rows is the answer. Otherwise it is the neighbour estimate,
   or the anchored critic's lower bound on evaluation rows that took no part in any of these choices.

Families and plain neighbours are for continuous columns. With discrete ones, rows are counted where they meet in few
places, and in few dimensions neighbours are sought among rows of the same levels; elsewhere a classifier of the
discrete variable answers, or else the anchored critic: both are lower bounds whatever the columns are.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from flatclr.mi.arrays import Array
from flatclr.mi.classifier import run_classifier, with_labels
from flatclr.mi.columns import dithered
from flatclr.mi.copula import FAMILIES, Copula, fit_gaussian, refitted
from flatclr.mi.critics import anchored
from flatclr.mi.families import family_bound, plug_in
from flatclr.mi.held_out import seeded, to_tensors, train_critic
from flatclr.mi.levels import Tied, dither_rng, run_levels, sort_columns
from flatclr.mi.neighbours import KSG_1, NEIGHBOUR_COLUMNS, run_neighbours
from flatclr.mi.outcome import Again, MethodOptions, Outcome, Reading, outcome_of
from flatclr.mi.splits import Split, splits
from flatclr.mi.variational import InfoNCE

_FEW_DIMENSIONS = 4  # of x and y together: neighbours are hard to beat
_CLEAR = 2.0  # standard errors
_LEAST_GAIN = 0.01  # nats


def choose(x: Array, y: Array, options: MethodOptions) -> Outcome:
    """Run what suits these rows, and say what it was and why.

    Families, neighbours and counts leave the kind of their value open, so that it is the default's own, "neither".
    """
    split = next(splits(len(x), options.seed))
    if not options.tied:
        return _choose_continuous(x, y, split, options)
    columns = sort_columns(x, y)
    if not columns.ordered and not columns.continuous:
        reason = f"tied values in {columns.places} places, several rows in each: they are counted."
        return _same_levels(x, y, reason, options)
    if options.discrete:
        return _choose_mixed(x, y, columns, split, options)
    return _choose_rounded(x, y, columns, split, options)


def _answer(run: Again, x: Array, y: Array, method: str, reason: str) -> Outcome:
    return replace(run(x, y), method=method, reason=reason, again=run)


def _choose_rounded(x: Array, y: Array, columns: Tied, split: Split, options: MethodOptions) -> Outcome:
    """As if columns were not rounded, unless they are codes whose levels tell more than their order."""
    rng = dither_rng(options.seed)
    found = _choose_continuous(dithered(x, rng), dithered(y, rng), split, options)
    again = found.again
    assert again is not None
    if columns.apart and columns.width <= _FEW_DIMENSIONS:
        neighbours = run_levels(x, y, options)
        if neighbours.nats - found.nats > _margin(neighbours, found):
            told = f"{found.nats:.3f} nats if rounded, but {_described(columns)} see {neighbours.nats:.3f}."
            return _same_levels(x, y, told, options)
    return replace(
        found,
        warnings=(*found.warnings, *columns.warnings),
        reason=f"rounded columns were given further digits at random: {found.reason}",
        again=lambda x, y: again(dithered(x, rng), dithered(y, rng)),
    )


def _choose_continuous(x: Array, y: Array, split: Split, options: MethodOptions) -> Outcome:
    width = x.shape[1] + y.shape[1]
    seen = np.concatenate([split.train, split.validation])  # no choice looks at the evaluation rows
    family, copula, validation = _best_family(x, y, split)

    def plugged_in(reason: str) -> Outcome:
        def again(x: Array, y: Array) -> Outcome:
            return plug_in(refitted(FAMILIES[family](x[split.train], y[split.train]), x, y), x, y)

        return replace(plug_in(refitted(copula, x, y), x, y), method=family, reason=reason, again=again)

    trusted = _confirmed(copula, validation)
    reached = f"the {family} copula reaches {validation.nats:.3f} nats on validation"

    if width <= _FEW_DIMENSIONS:
        neighbours = run_neighbours(KSG_1, x[seen], y[seen], options)
        if trusted and neighbours.nats - validation.nats < _margin(neighbours, validation):
            return plugged_in(f"{reached} and neighbours see no more.")
        reason = f"{reached}, neighbours see {neighbours.nats:.3f} in {width} dimensions."
        return _neighbours(x, y, reason, options)

    learned, residual = _learned(copula, x, y, split, options)
    if width <= NEIGHBOUR_COLUMNS:
        neighbours = run_neighbours(KSG_1, x[seen], y[seen], options)
        if neighbours.nats - residual.nats > _margin(neighbours, residual):
            reason = f"{reached}, a residual network on top {residual.nats:.3f}, neighbours see {neighbours.nats:.3f}."
            return _neighbours(x, y, reason, options)
    if trusted and not _clearly_above(residual, validation, _LEAST_GAIN):
        return plugged_in(f"{reached} and a residual network adds nothing.")

    def again(x: Array, y: Array) -> Outcome:
        return _learned(FAMILIES[family](x[split.train], y[split.train]), x, y, split, options)[0]

    reason = f"{reached}, a residual network on top {residual.nats:.3f}."
    return replace(learned, method=f"infonce, anchored on {family}", reason=reason, again=again)


def _choose_mixed(x: Array, y: Array, columns: Tied, split: Split, options: MethodOptions) -> Outcome:
    """Where values are tied no density ratio is smooth: look at neighbours, or learn a lower bound."""
    width = x.shape[1] + y.shape[1]
    near = width if columns.ordered else columns.width  # dithered levels blur what is seen in many dimensions
    if near <= _FEW_DIMENSIONS:
        return _same_levels(x, y, f"tied values: {_described(columns)}.", options)

    def learn(x: Array, y: Array) -> tuple[Outcome, Reading, str, str]:
        labelled = with_labels(x, y)
        if labelled is not None:
            outcome, reading = run_classifier(*labelled, split, options)
            why = f"a classifier of the {len(labelled[1].counts)} classes (entropy {outcome.ceiling_nats:.3f} nats)"
            return outcome, reading, "classifier", why
        outcome, reading = _learned(fit_gaussian(x[split.train], y[split.train]), x, y, split, options)
        return outcome, reading, "infonce, anchored on gaussian", "a critic, which bounds whatever the columns are,"

    learned, validation, method, why = learn(x, y)
    reason = f"tied values in {width} dimensions: {why} reaches {validation.nats:.3f} nats on validation"
    if near <= NEIGHBOUR_COLUMNS and not columns.ordered:
        seen = np.concatenate([split.train, split.validation])
        neighbours = run_levels(x[seen], y[seen], options)
        reason += f", neighbours see {neighbours.nats:.3f}"
        if neighbours.nats - validation.nats > _margin(neighbours, validation):
            return _same_levels(x, y, f"{reason}.", options)
    return replace(learned, method=method, reason=f"{reason}.", again=lambda x, y: learn(x, y)[0])


def _described(columns: Tied) -> str:
    told = f"neighbours of the same levels in {columns.places} places" if columns.apart else "neighbours"
    ordered = f" after dithering {len(columns.ordered)} column(s) of more levels" if columns.ordered else ""
    return told + ordered


def _same_levels(x: Array, y: Array, reason: str, options: MethodOptions) -> Outcome:
    return _answer(lambda x, y: run_levels(x, y, options), x, y, "mixed_ksg", reason)


def _neighbours(x: Array, y: Array, reason: str, options: MethodOptions) -> Outcome:
    return _answer(lambda x, y: run_neighbours(KSG_1, x, y, options), x, y, "ksg", reason)


def _best_family(x: Array, y: Array, split: Split) -> tuple[str, Copula, Reading]:
    """The simplest family that no richer one beats clearly on the validation rows."""
    best: tuple[str, Copula, Reading] | None = None
    for name, fit_family in FAMILIES.items():
        copula = fit_family(x[split.train], y[split.train])
        reading = family_bound(copula, x, y, split.validation)
        if best is None or _clearly_above(reading, best[2], _LEAST_GAIN / 2):
            best = (name, copula, reading)
    assert best is not None
    return best


def _clearly_above(reading: Reading, other: Reading, least: float) -> bool:
    """By more than chance on the same rows, and by enough to matter."""
    gain = reading.values - other.values
    return float(gain.mean()) > max(_CLEAR * float(gain.std()) / math.sqrt(len(gain)), least)


def _confirmed(copula: Copula, validation: Reading) -> bool:
    """Whether the plug-in claims no more than held-out rows show, given what fitting so many correlations costs."""
    dim_y = len(copula.correlation) - copula.dim_x
    cost = copula.dim_x * dim_y / (2 * copula.rows)
    return copula.plug_in_nats - validation.nats < 2 * cost + 3 * validation.standard_error + _LEAST_GAIN


def _margin(neighbours: Outcome, reading: Outcome | Reading) -> float:
    return _CLEAR * math.hypot(neighbours.standard_error, reading.standard_error)


def _learned(copula: Copula, x: Array, y: Array, split: Split, options: MethodOptions) -> tuple[Outcome, Reading]:
    """The anchored critic's value on evaluation rows, and its reading on validation."""
    parts = to_tensors(copula, x, y, split)
    with seeded(options.seed) as generator:
        critic = anchored(copula, x.shape[1], y.shape[1], hidden=options.settings.hidden)
        learner, curve = train_critic(InfoNCE, critic, parts, options, generator)
    validation = learner.read(*parts.validation)
    return outcome_of(learner.read(*parts.evaluation), validation, curve, kind="lower"), validation
