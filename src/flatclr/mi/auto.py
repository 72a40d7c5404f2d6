"""The default: looks at the columns, and runs what suits them.

Continuous columns are read by `choose_continuous`, rounded ones too after dithering. With discrete ones, rows are
counted where they meet in few places, and in few dimensions neighbours are sought among rows of the same levels;
elsewhere a classifier of the discrete variable answers, or else the anchored critic: both are lower bounds whatever the
columns are. Where densities of the dithered columns see clearly more than the critic, they answer. Whatever did, the
error is infinite where a continuous column looks like a function of the other variable's. Fewer than 50 rows are read
by `read_few`, whatever the columns are.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from flatclr.mi.arrays import Array
from flatclr.mi.classifier import run_classifier, with_labels
from flatclr.mi.columns import dithered
from flatclr.mi.continuous import FEW_DIMENSIONS, choose_continuous, finished, learn_residual, look_by_densities
from flatclr.mi.copula import fit_gaussian
from flatclr.mi.families import family_bound
from flatclr.mi.few import read_few
from flatclr.mi.inputs import CALIBRATED_ROWS, FEWEST_ROWS_TO_LEARN
from flatclr.mi.learning_curve import PARTS, LearningCurve
from flatclr.mi.levels import ROWS_PER_PLACE, Tied, blurred_nats, dither_rng, run_levels, sort_columns
from flatclr.mi.neighbours import KSG_1, NEIGHBOUR_COLUMNS, run_neighbours
from flatclr.mi.noiseless import function_found
from flatclr.mi.outcome import Again, MethodOptions, Outcome, Reading
from flatclr.mi.splits import Split, splits

_CLEAR = 2.0  # standard errors
_UNCALIBRATED = (
    f"of fewer than {CALIBRATED_ROWS} rows the error is that of named families: other dependence may read lower than "
    "it says."
)
_FUNCTION = (
    "a continuous column looks like a function of the other variable's: one variable may determine the other without "
    "noise, and the information may be infinite."
)


def choose(x: Array, y: Array, options: MethodOptions) -> Outcome:
    """Run what suits these rows, and say what it was and why.

    Families, neighbours and counts leave the kind of their value open, so that it is the default's own, "neither".
    """
    if len(x) < FEWEST_ROWS_TO_LEARN:
        return read_few(x, y, options)
    found = _told_of_function(_choose(x, y, options), x, y)
    found = replace(found, nats=max(found.nats, found.certified_nats))
    if len(x) >= CALIBRATED_ROWS or not math.isfinite(found.standard_error):
        return found
    return replace(found, warnings=(*found.warnings, _UNCALIBRATED))


def _told_of_function(found: Outcome, x: Array, y: Array) -> Outcome:
    """Without an upper limit where columns determine one of the other variable, whatever stands beside them."""
    many = x.shape[1] + y.shape[1] > NEIGHBOUR_COLUMNS
    if many or not math.isfinite(found.standard_error) or not function_found(x, y):
        return found
    return replace(found, second_order=math.inf, warnings=(*found.warnings, _FUNCTION))


def _choose(x: Array, y: Array, options: MethodOptions) -> Outcome:
    split = next(splits(len(x), options.seed))
    if not options.tied:
        return choose_continuous(x, y, split, options)
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
    spread_x, spread_y = dithered(x, rng), dithered(y, rng)
    if columns.apart and columns.width <= FEW_DIMENSIONS:
        levels, near = run_levels(x, y, options), run_neighbours(KSG_1, spread_x, spread_y, options)
        if levels.nats - near.nats > _margin(levels, near):
            told = f"neighbours see {near.nats:.3f} nats if rounded, but {_described(columns)} {levels.nats:.3f}."
            return replace(_same_levels(x, y, told, options), runner_up=f"neighbours {near.nats:.3f}")
    found = _dithered_again(choose_continuous(spread_x, spread_y, split, options), rng, x, y)
    return replace(
        found,
        warnings=(*found.warnings, *columns.warnings),
        reason=f"rounded columns were given further digits at random: {found.reason}",
    )


def _dithered_again(found: Outcome, rng: np.random.Generator, x: Array, y: Array) -> Outcome:
    """What was found on dithered columns of x and y; run on other variables, it dithers those too."""
    again = found.again
    assert again is not None
    if found.method != "doe":
        return replace(found, again=lambda x, y: again(dithered(x, rng), dithered(y, rng)))

    def run(x: Array, y: Array) -> Outcome:
        return _sharpened(again(dithered(x, rng), dithered(y, rng)), x, y)

    return replace(_sharpened(found, x, y), again=run)


def _sharpened(found: Outcome, x: Array, y: Array) -> Outcome:
    """With what smooth densities miss of levels, half of which is in doubt."""
    missed = blurred_nats(x, y, found.nats)
    return replace(found, nats=found.nats + missed, second_order=math.hypot(found.second_order, missed / 2))


def _choose_mixed(x: Array, y: Array, columns: Tied, split: Split, options: MethodOptions) -> Outcome:
    """Where values are tied no density ratio is smooth: look at neighbours, or learn a lower bound."""
    width = x.shape[1] + y.shape[1]
    near = width if columns.ordered else columns.width  # dithered levels blur what is seen in many dimensions
    if near <= FEW_DIMENSIONS:
        return _same_levels(x, y, f"tied values: {_described(columns)}.", options)

    def learn(x: Array, y: Array, split: Split) -> tuple[Outcome, Reading, str, str]:
        labelled = with_labels(x, y)
        if labelled is not None:
            outcome, reading = run_classifier(*labelled, split, options)
            why = f"a classifier of the {len(labelled[1].counts)} classes (entropy {outcome.ceiling_nats:.3f} nats)"
            return outcome, reading, "classifier", why
        outcome, reading = learn_residual(fit_gaussian(x[split.train], y[split.train]), x, y, split, options)
        return outcome, reading, "infonce, anchored on gaussian", "a critic, which bounds whatever the columns are,"

    learned, validation, method, why = learn(x, y, split)
    reason = f"tied values in {width} dimensions: {why} reaches {validation.nats:.3f} nats on validation"
    runner_up = ""
    if near <= NEIGHBOUR_COLUMNS and not columns.ordered:
        seen = np.concatenate([split.train, split.validation])
        neighbours = run_levels(x[seen], y[seen], options)
        runner_up = f"neighbours {neighbours.nats:.3f}"
        reason += f", neighbours see {neighbours.nats:.3f}"
        if neighbours.nats - validation.nats > _margin(neighbours, validation):
            found = _same_levels(x, y, f"{reason}.", options)
            return replace(found, runner_up=f"{method} {validation.nats:.3f}", lower_nats=learned.certified_nats)
    if method != "classifier":  # whose value the entropy of the labels limits; a critic's, the logarithm of its rows
        rng = dither_rng(options.seed)
        dense = look_by_densities(dithered(x, rng), dithered(y, rng), split, options)
        runner_up = runner_up or ("" if dense is None else str(dense))
        if dense is not None and dense.sees_more_than(validation.nats, validation.standard_error):
            return replace(
                _dithered_again(dense.finish(), rng, x, y),
                reason=f"{reason}, densities of the dithered columns see {dense.nats:.3f}.",
                runner_up=f"{method} {validation.nats:.3f}",
                lower_nats=learned.certified_nats,
            )
    if not runner_up:
        simplest = family_bound(fit_gaussian(x[split.train], y[split.train]), x, y, split.validation)
        runner_up = f"the gaussian copula {simplest.nats:.3f}"
    found = finished(lambda: learned, lambda x, y, split: learn(x, y, split)[0], x, y, split, options)
    return replace(
        found,
        nats=max(found.nats, 0.0),  # which is a lower bound as well, and a better one than what was learned in vain
        method=method,
        reason=f"{reason}.",
        runner_up=runner_up,
    )


def _described(columns: Tied) -> str:
    told = f"neighbours of the same levels in {columns.places} places" if columns.apart else "neighbours"
    ordered = f" after dithering {len(columns.ordered)} column(s) of more levels" if columns.ordered else ""
    return told + ordered


def _same_levels(x: Array, y: Array, reason: str, options: MethodOptions) -> Outcome:
    return _answer(lambda x, y: _with_curve(run_levels(x, y, options), x, y, options), x, y, "mixed_ksg", reason)


def _with_curve(found: Outcome, x: Array, y: Array, options: MethodOptions) -> Outcome:
    """Carried on by the learning curve, with its error, where neighbours were sought: they see more in more rows.

    As many neighbours lie as far in a fourth of the rows as four times as many do in all. Where those are most of the
    rows of a place, the curve is no law any more, but says how far the reading may be off. Counts need none.
    """
    columns, wider = sort_columns(x, y), PARTS * options.k
    if not (columns.ordered or columns.continuous) or wider >= len(x):
        return found
    rise = LearningCurve(found.nats, found.nats - run_levels(x, y, replace(options, k=wider)).nats)
    if columns.places * ROWS_PER_PLACE * PARTS > len(x):
        return replace(found, second_order=math.hypot(found.second_order, 2 * rise.systematic_error))
    error = math.hypot(found.second_order, rise.systematic_error)
    return replace(found, nats=found.nats + rise.carried_on_nats, second_order=error)


def _margin(neighbours: Outcome, reading: Outcome | Reading) -> float:
    return _CLEAR * math.hypot(neighbours.standard_error, reading.standard_error)
