"""What a method is given besides rows, and what it gives back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from flatclr.mi.arrays import Array
from flatclr.mi.budget import Budget
from flatclr.mi.fit import Curve, FitSettings

Kind = Literal["lower", "upper", "neither"]
_ONE_SIDED = 1.644854  # 95 % quantile of the normal distribution
INTERACTION = 1.3  # the spread of a difference of neighbour terms over that of independent rows
ASKED = "asked for."  # the reason of a method that was not chosen by another


@dataclass(frozen=True)
class MethodOptions:
    """What a run of a method depends on besides its rows: the user's choices, and what a look at all rows has shown.

    Args:
        critic: that was asked for; None: the method's own.
        folds: of cross-fitting; 1: none.
        k: neighbours.
        seed: of everything random.
        settings: how networks are trained.
        tied: whether a column has many equal values, as rounded ones have.
        discrete: whether it has more of them than rounding makes.
        budget: how long all of it may take.

    >>> MethodOptions(folds=5).k
    3
    """

    critic: str | None = None  # None: the method's own
    folds: int = 1
    k: int = 3
    seed: int = 0
    settings: FitSettings = field(default_factory=FitSettings)
    tied: bool = False  # a column has many equal values, as rounded ones have
    discrete: bool = False  # and more of them than rounding makes
    budget: Budget = field(default_factory=Budget)


def certified(nats: float, standard_error: float) -> float:
    """What a bound of this value and error is above with 95 %, and 0 at least.

    >>> round(certified(1.0, 0.1), 3), certified(0.1, 0.1)
    (0.836, 0.0)
    """
    return max(nats - _ONE_SIDED * standard_error, 0.0) if math.isfinite(standard_error) else 0.0


@dataclass(frozen=True)
class Reading:
    """A value read from held-out rows, with what its spread is estimated from."""

    values: Tensor  # their mean is the estimate in nats
    influence: Tensor  # per independent unit (row or batch); its spread gives the standard error
    ceiling_nats: float
    negative_pairs: int  # averaged over

    @property
    def nats(self) -> float:
        return float(self.values.mean())

    @property
    def standard_error(self) -> float:
        return float(self.influence.std() / math.sqrt(len(self.influence)))


@dataclass(frozen=True)
class Outcome:
    """A value in nats and how it came about: what a method gives back.

    Args:
        nats: the value.
        rows: that it was read from.
        influence: of each row (or group of rows) on the value; none where the value is certain.
        negative_pairs: averaged over.
        kind: "lower", "upper" or "neither"; None: that of the method.
        second_order: a deviation that `influence` does not show.
        rows_interact: whether a row's term depends on its neighbours', so that differences of terms say too little.
        ceiling_nats: the most it could have read.
        ceiling_hides: False where the information itself cannot be larger.
        curve: of the training.
        warnings: for the user.
        method: what gave the value; None: the method itself.
        reason: why that one.
        again: what was run in the end; None: the method itself.
        lower_nats: a lower bound that holds with 95 %; None: what the value's own kind and error certify.
        runner_up: what came second, with its value.

    >>> import numpy as np
    >>> Outcome(0.5, rows=100, influence=np.array([-1.0, 1.0]), negative_pairs=9900).standard_error
    1.0
    """

    nats: float
    rows: int
    influence: Array  # of each row (or group of rows) on the value; none where the value is certain
    negative_pairs: int
    kind: Kind | None = None  # None: that of the method
    second_order: float = 0.0  # a deviation that `influence` does not show
    rows_interact: bool = False  # a row's term depends on its neighbours', so that differences of terms say too little
    ceiling_nats: float = math.inf
    ceiling_hides: bool = True  # False: the information itself cannot be larger
    curve: Curve = ()
    warnings: tuple[str, ...] = ()
    method: str | None = None  # what gave the value; None: the method itself
    reason: str = ASKED
    again: Again | None = None  # what was run in the end; None: the method itself
    lower_nats: float | None = None  # holds with 95 %; None: what the value's own kind and error certify
    runner_up: str = ""  # what came second, with its value

    @property
    def certified_nats(self) -> float:
        """The largest lower bound that holds with 95 %; information is never negative, so neither is this."""
        own = certified(self.nats, self.standard_error) if self.kind == "lower" else 0.0
        return own if self.lower_nats is None else max(self.lower_nats, 0.0)

    @property
    def standard_error(self) -> float:
        """From the spread of `influence`, and the deviation that it does not show."""
        if len(self.influence) == 0:
            return 0.0
        return math.hypot(float(self.influence.std(ddof=1)) / math.sqrt(len(self.influence)), self.second_order)


Again = Callable[[Array, Array], Outcome]  # the same on other variables of the same rows
Run = Callable[[Array, Array, MethodOptions], Outcome]


def difference_error(whole: Outcome, part: Outcome) -> float:
    """Standard error of whole - part, both of the same rows, one's variables among the other's.

    Row by row, as what two terms share cancels. The second orders belong to chi-squares of which the part's is
    contained in the whole's: their difference is again one. Where rows interact, the spread of the rows' differences
    says too little, by a factor that was measured: 1.28 at 400 rows, 1.4 +- 0.2 at 2,000.
    """
    if not (math.isfinite(whole.second_order) and math.isfinite(part.second_order)):
        return math.inf
    remaining = max(whole.second_order**2 - part.second_order**2, 0.0)
    terms = len(whole.influence) == len(part.influence)  # none, or fewer, where a value is certain or rows are alone
    influence = whole.influence - part.influence if terms else whole.influence
    inflated = influence * INTERACTION if whole.rows_interact else influence
    return replace(whole, influence=inflated, second_order=math.sqrt(remaining)).standard_error


def outcome_of(
    evaluation: Reading,
    validation: Reading,
    curve: Curve,
    *,
    kind: Kind | None = None,
    ceiling_hides: bool = True,
    warnings: tuple[str, ...] = (),
) -> Outcome:
    """The evaluation's value; the validation's only says whether they agree."""
    spread = math.hypot(evaluation.standard_error, validation.standard_error)
    disagree = abs(evaluation.nats - validation.nats) > 3 * spread
    warning = (
        f"validation ({validation.nats:.3f}) and evaluation ({evaluation.nats:.3f}) disagree by more than three "
        "standard errors; get more rows."
    )
    return Outcome(
        nats=evaluation.nats,
        rows=len(evaluation.values),
        influence=evaluation.influence.double().numpy(),
        negative_pairs=evaluation.negative_pairs,
        kind=kind,
        ceiling_nats=evaluation.ceiling_nats,
        ceiling_hides=ceiling_hides,
        curve=curve,
        warnings=(warning, *warnings) if disagree else warnings,
    )
