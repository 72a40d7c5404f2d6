"""`flatclr.mi.estimate`: a number, its error, its limits, and what it is."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from flatclr.checks import require_count, require_one_of
from flatclr.mi.auto import ASKED, Choice, Run, choose
from flatclr.mi.copula import FAMILIES
from flatclr.mi.critics import CRITICS
from flatclr.mi.fit import FitSettings
from flatclr.mi.inputs import as_rows, inspect, require_same_rows
from flatclr.mi.limits import Limits, all_pairs
from flatclr.mi.methods import VARIATIONAL
from flatclr.mi.runners import (
    DENSITY,
    NEIGHBOURS,
    Options,
    Outcome,
    difference_error,
    run_copula,
    run_held_out,
    run_neighbours,
)
from flatclr.mi.tasks import Array

_FEW_ROWS = 500
_ROWS_PER_COLUMN = 20
LARGEST_ROWS = 50_000
FEWEST_ROWS_A_FOLD = 10

METHODS: dict[str, str] = {
    "auto": "chosen by held-out rows; says which and why",
    "infonce": "lower bound, at most log of the pool; anchored critic",
    "flatnce": "lower bound: bounded critic trained with FlatNCE, read by InfoNCE",
    "dv": "lower bound (Donsker-Varadhan), biased upward on few rows",
    "mine": "lower bound: DV trained with a moving average",
    "nwj": "lower bound with a variance that grows like e^MI",
    "tuba": "lower bound: NWJ with a learned baseline",
    "flo": "lower bound (Fenchel-Legendre) with a learned u(x, y)",
    "js": "lower bound: NWJ of a critic trained by logistic regression",
    "smile": "neither: DV with a clipped partition",
    "interpolated": "lower bound between InfoNCE and TUBA",
    "ba": "lower bound where y is one continuous column, else neither: conditional density",
    "club": "upper bound if the learned conditional density is the true one; neither where held-out rows deny it",
    "l1out": "neither: an upper bound if the learned conditional density were the true one",
    "ksg": "neither: nearest neighbours (KSG 1)",
    "ksg2": "neither: nearest neighbours (KSG 2)",
    "mixed_ksg": "neither: nearest neighbours for discrete-continuous mixtures",
    "gaussian": "neither: Gaussian copula (CCA), bias corrected",
    "student": "neither: Student copula",
    "spiral": "neither: Gaussian copula after undoing rotations by the norm",
}


@dataclass(frozen=True)
class MIEstimate:
    """An estimate of mutual information."""

    nats: float
    standard_error: float
    ceiling_nats: float  # the most the method could have said; infinite where there is no such limit
    kind: str  # "lower", "upper" or "neither"
    method: str
    warnings: tuple[str, ...]
    curve: tuple[tuple[int, float], ...]  # (step, validation nats) of what was trained
    reason: str  # why this method
    limits: Limits

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which knows no infinity."""
        plain = asdict(self)
        plain["limits"] = {
            "rows": self.limits.rows,
            "negative_pairs": self.limits.negative_pairs,
            "distribution_free_nats": self.limits.distribution_free_nats,
            "mi_bound_nats": self.limits.mi_bound_nats,
            "nwj_variance": _finite_or_none(self.limits.nwj_variance),
        }
        plain["ceiling_nats"] = _finite_or_none(self.ceiling_nats)
        return plain


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
) -> MIEstimate:
    """Mutual information of the rows of x and y in nats.

    Args:
        x, y: [N] or [N, d] numbers: NumPy arrays, torch tensors or pandas frames; row i of both belong together.
        method: one of `flatclr.mi.METHODS`; "auto" chooses by held-out rows and says why.
        given: condition on these rows: I(x; y | z) = I(x; [y, z]) - I(x; z), which bounds nothing.
        critic: of the variational methods: "inner", "bilinear", "separable", "joint", "anchored", "cosine".
        folds: evaluate on every row by cross-fitting instead of on one fifth of them (learned methods).
        k: neighbours of the nearest-neighbour methods.
        seed: of splits, initial weights and batches.
        settings: how networks are trained; `flatclr.mi.FAST` for a quick look.

    >>> x, y = flatclr.mi.tasks.gaussian_pairs(1, pairs=1, correlation=0.8).sample(2000, seed=0)
    >>> result = estimate(x, y, method="gaussian")
    >>> abs(result.nats - 0.511) < 3 * result.standard_error, result.kind
    (True, 'neither')
    """
    _require_scipy()
    require_one_of("method", method, METHODS)
    if critic is not None:
        require_one_of("critic", critic, CRITICS)
    require_count("folds", folds, at_most=20, advice="1 evaluates on one fifth; 5 cross-fits.")
    require_count("k", k, advice="3 is usual.")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be a whole number from 0 to 2^63 - 1, got {seed!r}; pass 0.")
    seed = int(seed)
    if critic is not None and method not in VARIATIONAL:
        raise ValueError(f"critic must be None for method {method!r}, got {critic!r}; it has none to choose.")
    if folds > 1 and method not in (*VARIATIONAL, *DENSITY):
        raise ValueError(f"folds must be 1 for method {method!r}, got {folds}; only learned methods cross-fit.")
    options = Options(critic=critic, folds=folds, k=k, seed=seed, settings=settings or FitSettings())
    x_rows, y_rows = as_rows("x", x), as_rows("y", y)
    if folds > 1 and len(x_rows) < FEWEST_ROWS_A_FOLD * folds:
        raise ValueError(
            f"folds must leave at least {FEWEST_ROWS_A_FOLD} rows in each, got {folds} for {len(x_rows)} rows; "
            "use fewer."
        )
    if given is None:
        require_same_rows(x=x_rows, y=y_rows)
        return _finished(*_choose(x_rows, y_rows, method, options))
    z_rows = as_rows("given", given)
    require_same_rows(x=x_rows, y=y_rows, given=z_rows)
    choice, warnings = _choose(x_rows, np.hstack([y_rows, z_rows]), method, options)
    # one method for both terms, so that its errors may cancel
    part, part_warnings = _choose(x_rows, z_rows, method, options, run=choice.again)
    both, alone = _finished(choice, warnings), _finished(part, part_warnings)
    nats = both.nats - alone.nats
    return replace(
        both,
        nats=nats,
        standard_error=difference_error(choice.outcome, part.outcome),
        kind="neither",
        limits=replace(both.limits, nats=nats),
        warnings=tuple(dict.fromkeys((*both.warnings, *alone.warnings))),
        reason=f"I(x; [y, z]) = {both.nats:.3f} less I(x; z) = {alone.nats:.3f}, by {both.method}: {choice.reason}",
    )


def _require_scipy() -> None:
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise ImportError('flatclr.mi needs scipy, got no such module; pip install "flatclr[mi]".') from error


def _choose(x: Array, y: Array, method: str, options: Options, *, run: Run | None = None) -> tuple[Choice, list[str]]:
    """The outcome on these rows and what is odd about them; `run`, if given, is used in place of the method."""
    x_seen, y_seen = inspect("x", x), inspect("y", y)
    x, y = x_seen.rows, y_seen.rows
    warnings = [*x_seen.warnings, *y_seen.warnings]
    if 0 in (x.shape[1], y.shape[1]):
        nothing = Outcome(0.0, "neither", len(x), np.zeros(0), all_pairs(len(x)))
        return Choice(nothing, method, "a constant variable shares nothing.", lambda x, y: nothing), warnings
    if _shared_column(x, y):
        warnings.append("x and y have a column in common; their information is unlimited unless it is discrete.")
    if len(x) < max(_FEW_ROWS, _ROWS_PER_COLUMN * (x.shape[1] + y.shape[1])):
        warnings.append(f"{len(x)} rows are few for {x.shape[1]} + {y.shape[1]} columns; expect a rough estimate.")
    if len(x) > LARGEST_ROWS and method != "gaussian":
        warnings.append(f"{LARGEST_ROWS} of {len(x)} rows were drawn: more cost much and tell little.")
        drawn = np.random.default_rng(options.seed).choice(len(x), LARGEST_ROWS, replace=False)
        x, y = x[drawn], y[drawn]
    if run is None and method == "auto":
        tied, discrete = x_seen.tied or y_seen.tied, x_seen.discrete or y_seen.discrete
        return choose(x, y, tied=tied, discrete=discrete, options=options), warnings
    run = run or (lambda x, y: _run(method, x, y, options))
    return Choice(run(x, y), method, ASKED, run), warnings


def _run(method: str, x: Array, y: Array, options: Options) -> Outcome:
    if method in NEIGHBOURS:
        return run_neighbours(method, x, y, options)
    if method in FAMILIES:
        return run_copula(method, x, y)
    return run_held_out(method, x, y, options)


def _finished(choice: Choice, warnings: list[str]) -> MIEstimate:
    outcome = choice.outcome
    limits = Limits(
        outcome.nats, outcome.ceiling_nats, outcome.rows, outcome.negative_pairs, ceiling_hides=outcome.ceiling_hides
    )
    kind = outcome.kind
    if kind == "lower" and outcome.nats > limits.distribution_free_nats:
        kind = "neither"
        warnings = [*warnings, "no sample of this size supports a lower bound above ln N; the value is no bound."]
    return MIEstimate(
        nats=outcome.nats,
        standard_error=outcome.standard_error,
        ceiling_nats=outcome.ceiling_nats,
        kind=kind,
        method=choice.method,
        warnings=(*warnings, *outcome.warnings, *limits.warnings()),
        curve=outcome.curve,
        reason=choice.reason,
        limits=limits,
    )


def _shared_column(x: Array, y: Array) -> bool:
    return any(bool((column == other).all()) for column in x.T for other in y.T)
