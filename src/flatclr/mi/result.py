"""`MIEstimate`: what a user gets."""

from __future__ import annotations

import html
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from flatclr.mi.budget import Budget
from flatclr.mi.limits import Limits
from flatclr.mi.outcome import Outcome

if TYPE_CHECKING:
    import pandas as pd

NORMAL = 1.959964  # 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class MIEstimate:
    """An estimate of mutual information, with what it is and what it cannot be.

    Attributes:
        nats: the estimate; of bounds, read from evaluation rows that neither trained nor stopped anything.
        standard_error: how the value would vary over fresh rows, in nats; not how far the method is from the truth.
        ceiling_nats: the most the method could have said; infinite where there is no such limit.
        kind: "lower" or "upper" bound in expectation, or "neither".
        method: what gave the number.
        warnings: what a reader of the number should know.
        curve: (step, validation nats) of what was trained.
        reason: why this method.
        limits: what no method can pass on so many rows, see `flatclr.mi.limits`.
        lower_nats: the largest lower bound that these rows certify, with 95 %; 0 where none is. `nats` is the best
            estimate and may be far above it: an InfoNCE bound cannot pass the logarithm of the rows it is read from.
        runner_up: what came second, with its value; empty where nothing was chosen.
        steps: after which the estimate ended; the same seed and `steps=` give the same number whatever the clock says.
        more_time: what a larger budget would do; empty where nothing was left undone.

    >>> x, y = flatclr.mi.tasks.gaussian_pairs(1, pairs=1).sample(500, seed=0)
    >>> result = flatclr.mi.estimate(x, y, "ksg")
    >>> result.kind, result.method, result.reason, result.warnings
    ('neither', 'ksg', 'asked for.', ())
    """

    nats: float
    standard_error: float
    ceiling_nats: float
    kind: str
    method: str
    warnings: tuple[str, ...]
    curve: tuple[tuple[int, float], ...]
    reason: str
    limits: Limits
    lower_nats: float = 0.0
    runner_up: str = ""
    steps: int = 0
    more_time: str = ""

    @classmethod
    def of(cls, outcome: Outcome, warnings: tuple[str, ...], budget: Budget | None = None) -> MIEstimate:
        """The outcome of a method, with warnings about its rows before its own and those of the limits."""
        assert outcome.kind is not None
        assert outcome.method is not None
        limits = Limits(
            outcome.nats,
            outcome.ceiling_nats,
            outcome.rows,
            outcome.negative_pairs,
            ceiling_hides=outcome.ceiling_hides,
        )
        budget = budget or Budget()
        more_time = ", ".join(budget.undone)
        if more_time:
            warnings = (*warnings, f"the budget ended first; more time would {more_time}.")
        kind = outcome.kind
        if kind == "lower" and outcome.nats > limits.distribution_free_nats:
            kind = "neither"
            told = "no sample of this size supports a lower bound above ln N; the value is no bound."
            warnings = (*warnings, told)
        return cls(
            nats=outcome.nats,
            standard_error=outcome.standard_error,
            ceiling_nats=outcome.ceiling_nats,
            kind=kind,
            method=outcome.method,
            warnings=(*warnings, *outcome.warnings, *limits.warnings()),
            curve=outcome.curve,
            reason=outcome.reason,
            limits=limits,
            lower_nats=outcome.certified_nats if kind == outcome.kind else 0.0,
            runner_up=outcome.runner_up,
            steps=budget.steps_done,
            more_time=more_time,
        )

    def sentence(self, x: str = "x", y: str = "y", given: str = "") -> str:
        """The number with its 95 % interval and what it is, in one sentence.

        Args:
            x, y, given: what the variables are called.

        Returns:
            Say "I(age; bmi) = 0.114 +- 0.016 nats (95 %), a lower bound".
        """
        what = f"I({x}; {y} | {given})" if given else f"I({x}; {y})"
        kind = {"lower": ", a lower bound", "upper": ", an upper bound"}.get(self.kind, "")
        if not math.isfinite(self.standard_error):
            return f"{what} >= {self.lower_nats:.3f} nats (95 %), without an upper limit; {self.nats:.3f} is a guess"
        return f"{what} = {self.nats:.3f} +- {NORMAL * self.standard_error:.3f} nats (95 %){kind}"

    def to_frame(self) -> pd.DataFrame:
        """One row: the number, its error, what is certified, its ceiling, its kind, the method and what came second."""
        import pandas as pd

        names = ("nats", "standard_error", "lower_nats", "ceiling_nats", "kind", "method", "reason", "runner_up")
        return pd.DataFrame([{name: getattr(self, name) for name in names}])

    def _repr_html_(self) -> str:
        warned = "".join(f"<p>warning: {html.escape(warning)}</p>" for warning in self.warnings)
        table = self.to_frame().to_html(index=False, float_format="{:.4g}".format, border=0)
        return f"<p>{html.escape(self.sentence())}</p>{table}{warned}"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts for JSON, which knows no infinity: None stands for it."""
        plain = asdict(self)
        plain["limits"] = {
            "rows": self.limits.rows,
            "negative_pairs": self.limits.negative_pairs,
            "distribution_free_nats": self.limits.distribution_free_nats,
            "mi_bound_nats": self.limits.mi_bound_nats,
            "nwj_variance": _finite_or_none(self.limits.nwj_variance),
        }
        for name in ("ceiling_nats", "standard_error"):
            plain[name] = _finite_or_none(getattr(self, name))
        return plain


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
