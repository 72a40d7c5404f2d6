"""BA, CLUB and leave-one-out as methods: what each can claim on the rows it was read from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flatclr.mi.arrays import Array
from flatclr.mi.columns import is_tied
from flatclr.mi.copula import fit_gaussian
from flatclr.mi.density import Conditional, gaussian_entropy_nats
from flatclr.mi.fit import Curve, fit
from flatclr.mi.held_out import cross_fitted, seeded, to_tensors
from flatclr.mi.outcome import Kind, MethodOptions, Outcome, Reading, outcome_of
from flatclr.mi.splits import Split

_FITTED = "it would be an upper bound if the learned q(y | x) were the true one; a wrong q reads low."


@dataclass(frozen=True)
class _Fitted:
    """A density of y given x after training on one split, read on its other parts."""

    y: Array
    evaluation: Reading
    validation: Reading
    curve: Curve


def run_ba(x: Array, y: Array, options: MethodOptions) -> Outcome:
    """A lower bound where H(y) is known: of one continuous column's normal scores. Elsewhere only a limit of it is."""

    def claim(found: _Fitted) -> Outcome:
        known = found.y.shape[1] == 1 and not is_tied(found.y[:, 0])
        kind: Kind | None = None if known else "neither"
        return outcome_of(found.evaluation, found.validation, found.curve, kind=kind)

    return _run("ba", claim, x, y, options)


def run_club(x: Array, y: Array, options: MethodOptions) -> Outcome:
    """No bound: with a q that was fitted it may read low."""

    def claim(found: _Fitted) -> Outcome:
        return outcome_of(found.evaluation, found.validation, found.curve, warnings=(_FITTED,))

    return _run("club", claim, x, y, options)


def run_l1out(x: Array, y: Array, options: MethodOptions) -> Outcome:
    """No bound: its mean over other rows falls with a q that has learned too little.

    On the benchmark it is below the truth on a third of the tasks.
    """

    def claim(found: _Fitted) -> Outcome:
        return outcome_of(found.evaluation, found.validation, found.curve, warnings=(_FITTED,))

    return _run("l1out", claim, x, y, options)


def _run(name: str, claim: Callable[[_Fitted], Outcome], x: Array, y: Array, options: MethodOptions) -> Outcome:
    if x.shape[1] < y.shape[1]:
        x, y = y, x  # the density of the narrower variable is easier to learn, and one normal score's entropy is known
    return cross_fitted(lambda split: claim(_fitted(name, x, y, split, options)), len(x), options)


def _fitted(name: str, x: Array, y: Array, split: Split, options: MethodOptions) -> _Fitted:
    parts = to_tensors(fit_gaussian(x[split.train], y[split.train]), x, y, split)
    entropy_nats = gaussian_entropy_nats(parts.train[1])
    with seeded(options.seed) as generator:
        learner = Conditional(*parts.train, hidden=options.settings.hidden)
        curve = fit(learner, parts.train, parts.validation, options.settings, generator, options.budget)
    evaluation, validation = (learner.read(name, *part, entropy_nats) for part in (parts.evaluation, parts.validation))
    return _Fitted(y, evaluation, validation, curve)
