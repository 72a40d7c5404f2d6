"""`flatclr.mi.estimate`: a number, its error, its limits, and what it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from flatclr.checks import require_count, require_number, require_one_of
from flatclr.mi.arrays import Array
from flatclr.mi.budget import Budget, Progress
from flatclr.mi.columns import inspect
from flatclr.mi.critics import CRITICS
from flatclr.mi.fit import FitSettings
from flatclr.mi.inputs import FEWEST_ROWS_TO_LEARN, as_rows, few_rows, require_same_rows
from flatclr.mi.limits import all_pairs
from flatclr.mi.methods import METHODS, REGISTRY, Method
from flatclr.mi.noiseless import exact_relation
from flatclr.mi.outcome import Again, MethodOptions, Outcome, difference_error
from flatclr.mi.result import MIEstimate
from flatclr.threads import threads

LARGEST_ROWS = 50_000
BUDGET_SECONDS = 60.0
FEWEST_ROWS_A_FOLD = 10


def estimate(
    x: Any,
    y: Any,
    method: str = "auto",
    given: Any = None,
    *,
    critic: str | None = None,
    folds: int = 1,
    k: int = 3,
    seed: int = 0,
    settings: FitSettings | None = None,
    budget_seconds: float | None = BUDGET_SECONDS,
    steps: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> MIEstimate:
    """Mutual information of the rows of x and y in nats, with its error, its kind and its limits.

    Args:
        x, y: [N] or [N, d] numbers: NumPy arrays, torch tensors or pandas frames; row i of both belong together.
            Constant and duplicated columns are left out with a warning.
        method: one of `flatclr.mi.METHODS`; "auto" chooses by held-out rows and says why.
        given: condition on these rows: I(x; y | z) = I(x; [y, z]) - I(x; z), which bounds nothing.
        critic: of the variational methods, one of `flatclr.mi.CRITICS`; None is the method's own.
        folds: evaluate on every row by cross-fitting instead of on one fifth of them; of "auto", where networks answer.
        k: neighbours of the nearest-neighbour methods.
        seed: of splits, initial weights and batches.
        settings: how networks are trained; `flatclr.mi.FAST` for a quick look.
        budget_seconds: after which training ends at its next check and further tries are left out; None: no limit.
        steps: end there instead, whatever the clock says: with the `steps` of an earlier result and the same seed the
            number is the same.
        progress: is told the stage, the best held-out value so far and the seconds, as a `flatclr.mi.Progress`.

    Returns:
        `MIEstimate`: nats, standard_error, lower_nats, kind, method, reason, runner_up, ceiling_nats, limits, warnings,
        steps, more_time and curve.

    >>> x, y = flatclr.mi.tasks.gaussian_pairs(1, pairs=1, correlation=0.8).sample(2000, seed=0)
    >>> result = estimate(x, y, method="gaussian")
    >>> abs(result.nats - 0.511) < 3 * result.standard_error, result.kind
    (True, 'neither')

    Reference: of each method, in docs/mutual-information.md; of the limits, McAllester & Stratos 2020.
    """
    require_one_of("method", method, METHODS)
    asked = REGISTRY[method]
    options = _checked_options(asked, critic=critic, folds=folds, k=k, seed=seed, settings=settings)
    budget = _checked_budget(budget_seconds, steps, progress)
    x_rows, y_rows = as_rows("x", x), as_rows("y", y)
    if folds > 1 and len(x_rows) < FEWEST_ROWS_A_FOLD * folds:
        raise ValueError(
            f"folds must leave at least {FEWEST_ROWS_A_FOLD} rows in each, got {folds} for {len(x_rows)} rows; "
            "use fewer."
        )
    if asked.cross_fits and not asked.takes_few_rows and len(x_rows) < FEWEST_ROWS_TO_LEARN:
        raise ValueError(
            f"at least {FEWEST_ROWS_TO_LEARN} rows must be given to method {method!r}, got {len(x_rows)}; a network "
            "learns nothing from so few, use 'auto'."
        )
    if given is None:
        require_same_rows(x=x_rows, y=y_rows)
        return MIEstimate.of(*_run(asked, x_rows, y_rows, replace(options, budget=budget)), budget)
    z_rows = as_rows("given", given)
    require_same_rows(x=x_rows, y=y_rows, given=z_rows)
    return _conditional(asked, x_rows, y_rows, z_rows, options, budget)


def _checked_budget(seconds: float | None, steps: int | None, progress: Callable[[Progress], None] | None) -> Budget:
    if seconds is not None:
        require_number("budget_seconds", seconds, above=0, advice="None lifts the limit.")
    if steps is not None:
        require_count("steps", steps, at_least=0, advice="pass those of an earlier result.")
        seconds = None
    return Budget(seconds, steps, progress)


def _checked_options(
    asked: Method, *, critic: str | None, folds: int, k: int, seed: int, settings: FitSettings | None
) -> MethodOptions:
    """The user's choices, refused where the method would ignore them."""
    if critic is not None:
        require_one_of("critic", critic, CRITICS)
    require_count("folds", folds, at_most=20, advice="1 evaluates on one fifth; 5 cross-fits.")
    require_count("k", k, advice="3 is usual.")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be a whole number from 0 to 2^63 - 1, got {seed!r}; pass 0.")
    if critic is not None and asked.estimator is None:
        raise ValueError(f"critic must be None for method {asked.name!r}, got {critic!r}; it has none to choose.")
    if folds > 1 and not asked.cross_fits:
        raise ValueError(f"folds must be 1 for method {asked.name!r}, got {folds}; only learned methods cross-fit.")
    return MethodOptions(critic=critic, folds=folds, k=k, seed=int(seed), settings=settings or FitSettings())


def _conditional(asked: Method, x: Array, y: Array, z: Array, options: MethodOptions, budget: Budget) -> MIEstimate:
    """I(x; y | z) = I(x; [y, z]) - I(x; z), one method and as many steps for both terms, so that errors may cancel."""
    if budget.seconds is not None:
        budget.seconds /= 2  # the other half is for the other term
    options = replace(options, budget=budget)
    whole, whole_warnings = _run(asked, x, np.hstack([y, z]), options)
    both = MIEstimate.of(whole, whole_warnings, budget)
    budget.start_over()
    part, part_warnings = _run(asked, x, z, options, again=whole.again)
    alone = MIEstimate.of(part, part_warnings)
    nats = both.nats - alone.nats
    return replace(
        both,
        nats=nats,
        standard_error=difference_error(whole, part),
        kind="neither",
        limits=replace(both.limits, nats=nats),
        warnings=tuple(dict.fromkeys((*both.warnings, *alone.warnings))),
        lower_nats=0.0,
        reason=f"I(x; [y, z]) = {both.nats:.3f} less I(x; z) = {alone.nats:.3f}, by {both.method}: {whole.reason}",
    )


def _run(
    asked: Method, x: Array, y: Array, options: MethodOptions, *, again: Again | None = None
) -> tuple[Outcome, tuple[str, ...]]:
    """The outcome on these rows and what is odd about them; `again`, if given, is run in place of the method."""
    x_seen, y_seen = inspect("x", x), inspect("y", y)
    x, y = x_seen.rows, y_seen.rows
    warnings = [*x_seen.warnings, *y_seen.warnings]
    if 0 in (x.shape[1], y.shape[1]):
        return _nothing(asked, len(x)), tuple(warnings)
    shared = exact_relation(x, y)
    if shared:
        warnings.append(f"x and y have {shared}; their information is infinite.")
    if few_rows(len(x), x.shape[1] + y.shape[1]):
        warnings.append(f"{len(x)} rows are few for {x.shape[1]} + {y.shape[1]} columns; expect a rough estimate.")
    if len(x) > LARGEST_ROWS and not asked.takes_all_rows:
        warnings.append(f"{LARGEST_ROWS} of {len(x)} rows were drawn: more cost much and tell little.")
        drawn = np.random.default_rng(options.seed).choice(len(x), LARGEST_ROWS, replace=False)
        x, y = x[drawn], y[drawn]
    tied, discrete = x_seen.tied or y_seen.tied, x_seen.discrete or y_seen.discrete
    with threads(1):  # PyTorch's: networks are small, and the budget counts the calling thread alone
        found = asked(x, y, replace(options, tied=tied, discrete=discrete), again=again)
    return replace(found, second_order=math.inf) if shared else found, tuple(warnings)


def _nothing(asked: Method, rows: int) -> Outcome:
    nothing = Outcome(
        nats=0.0,
        rows=rows,
        influence=np.zeros(0),
        negative_pairs=all_pairs(rows),
        kind="neither",
        method=asked.name,
        reason="a constant variable shares nothing.",
    )
    return replace(nothing, again=lambda x, y: nothing)
