"""The bound at its ceiling, and weights of the negatives that are all alike or those of one."""

from __future__ import annotations

import math

from flatclr.doctor import thresholds as T
from flatclr.doctor.diagnosis import Finding
from flatclr.doctor.evidence import Evidence
from flatclr.doctor.remedies import train_command
from flatclr.doctor.rules.registry import rule

SUITS_MOST = 0.25  # as a target of the ESS
USUAL_TEMPERATURE = 0.1


@rule("bound_saturated", effect_of=("views_too_weak",))
def bound_saturated(evidence: Evidence) -> Finding | None:
    """InfoNCE's bound is near log(K + 1), the most a batch can show, and its gradient is gone with it."""
    saturation, ceiling = evidence.late("saturation"), evidence.late("ceiling_nats")
    if saturation is None or ceiling is None or not _gradient_vanishes(evidence):
        return None
    pool = evidence.late("pool_mi_best_nats")
    hidden = pool is not None and pool > ceiling
    if saturation < (T.SATURATED_BELOW_POOL if hidden else T.SATURATED):
        return None
    more = f" Against a pool the views share {pool:.2f} nats." if pool is not None and hidden else ""
    return Finding(
        "bound_saturated",
        "The bound is at its ceiling",
        cost=0.8 * saturation,
        evidence=f"The bound is at {saturation:.0%} of the {ceiling:.2f} nats that {evidence.negatives:.0f} negatives "
        f"can show.{more}",
        cause="With so few negatives InfoNCE tells each positive easily, and its gradient vanishes.",
        remedy="Use FlatNCE, whose gradient stays, a larger batch, or a queue of negatives.",
        command=train_command(evidence, objective="flatnce", objective_options=None),
        series=("saturation", "mi_nats", "ceiling_nats"),
    )


@rule("temperature_too_high", effect_of=("collapse", "learning_rate_too_high"))
def temperature_too_high(evidence: Evidence) -> Finding | None:
    """All negatives weigh the same, though embeddings differ: none of them teaches more than another."""
    ess, std = evidence.late("ess"), evidence.late("embedding_std")
    if ess is None or not _temperature_decides(evidence) or ess < T.ESS_ALL_EQUAL:
        return None
    if std is not None and std < T.SPREAD_STD:
        return None
    return Finding(
        "temperature_too_high",
        "The temperature is too high",
        cost=0.75,
        evidence=f"All negatives weigh the same: their effective sample size is {ess:.0%} of their number"
        f"{_beta(evidence)}.",
        cause="At so high a temperature hard negatives count no more than easy ones.",
        remedy=_by_control_or(evidence, "lower"),
        command=_another_temperature(evidence),
        series=("ess", "beta"),
    )


@rule("temperature_too_low", effect_of=("collapse", "learning_rate_too_high"))
def temperature_too_low(evidence: Evidence) -> Finding | None:
    """A few negatives carry the whole gradient of an anchor from the start, until the network squeezes its embeddings
    together. That few are left once it has learnt is no fault."""
    ess, negatives, std = evidence.series("ess"), evidence.negatives, evidence.late("embedding_std")
    if not ess or negatives is None or not _temperature_decides(evidence):
        return None
    carrying = ess.early * negatives
    few = negatives >= T.MANY_NEGATIVES and carrying <= T.FEW_EFFECTIVE
    squeezed = std is not None and std < T.SQUEEZED_STD and ess.late < T.SQUEEZED_ESS
    if not (few or squeezed):
        return None
    narrow = f" The spread of the embeddings fell to {std:.2f} of an even one." if squeezed else ""
    return Finding(
        "temperature_too_low",
        "The temperature is too low",
        cost=0.78,
        evidence=f"Of {negatives:.0f} negatives {carrying if few else ess.late * negatives:.1f} carry the gradient of "
        f"an anchor {'early' if few else 'late'}{_beta(evidence)}.{narrow}",
        cause="At so low a temperature the nearest negative takes all the weight, be it a false one, and the network "
        "spends its steps on squeezing embeddings together.",
        remedy=_by_control_or(evidence, "raise"),
        command=_another_temperature(evidence),
        series=("ess", "beta", "embedding_std"),
    )


@rule("controller_clamped", effect_of=("collapse", "learning_rate_too_high", "views_too_weak", "views_too_strong"))
def controller_clamped(evidence: Evidence) -> Finding | None:
    """The ESS controller is at a limit, far from its target, and no more steps will bring it there.

    The target, where it is known, only takes an alarm back.
    """
    clamped = evidence.series("beta_clamped")
    ess = evidence.late("ess")
    if not clamped or ess is None:
        return None
    late = clamped.values[-max(1, round(T.LATE_SHARE * len(clamped))) :]
    share = sum(late) / len(late)
    missed = _missed_odds(evidence, ess)
    if share < T.CLAMPED_SHARE or missed < (T.MISSED_FAR if evidence.still_rises else T.MISSED_ODDS):
        return None
    return Finding(
        "controller_clamped",
        "The ESS controller is at a limit",
        cost=0.65,
        evidence=f"At {share:.0%} of the last logged steps beta was at a limit{_beta(evidence)}; the ESS is {ess:.2f}, "
        f"its target {_target(evidence)}.",
        cause="The target cannot be reached within a factor of ten of the objective's own temperature.",
        remedy=f"Set a target that can be reached; {SUITS_MOST:g} suits most data."
        if evidence.settings.get("ess_target") != SUITS_MOST
        else f"Do without control, and fix the temperature, say at {_own_temperature(evidence):g}.",
        command=_another_temperature(evidence) or train_command(evidence, temperature=_own_temperature(evidence)),
        series=("beta", "ess", "beta_clamped"),
    )


def _gradient_vanishes(evidence: Evidence) -> bool:
    """Whether a solved batch teaches nothing more; of a loss of another library that came with negatives it does."""
    traits = evidence.traits
    return evidence.objective is None if traits is None else traits.vanishes_when_solved


def _temperature_decides(evidence: Evidence) -> bool:
    """Whether it is a fixed temperature that sets how negatives weigh."""
    traits = evidence.traits
    weighs = traits is None or (traits.temperature is not None and traits.temperature_weighs)
    return weighs and not evidence.is_controlled and not evidence.has_critic


def _own_temperature(evidence: Evidence) -> float:
    """That of the objective by default."""
    known = None if evidence.traits is None else evidence.traits.temperature
    return USUAL_TEMPERATURE if known is None else known


def _takes_control(evidence: Evidence) -> bool:
    return evidence.traits is None or evidence.traits.accepts_control


def _by_control_or(evidence: Evidence, change: str) -> str:
    """What to do about a temperature that is to be lower, or higher."""
    other = f"{change} it, say to {_own_temperature(evidence):g}."
    if _takes_control(evidence):
        return f"Let the ESS controller find the temperature, or {other}"
    return f"{other[:1].upper()}{other[1:]}"


def _another_temperature(evidence: Evidence) -> str | None:
    if _takes_control(evidence):
        return train_command(evidence, ess_target=SUITS_MOST)
    return train_command(evidence, temperature=_own_temperature(evidence))


def _missed_odds(evidence: Evidence, ess: float) -> float:
    """By how much the odds of the ESS are above or below those of its target; infinite where that is not known."""
    target = evidence.settings.get("ess_target")
    if not isinstance(target, int | float) or not (0 < target < 1 and 0 < ess < 1):
        return math.inf
    ratio = ess / (1 - ess) * (1 - target) / target
    return max(ratio, 1 / ratio)


def _beta(evidence: Evidence) -> str:
    beta = evidence.late("beta")
    return "" if beta is None else f" at an inverse temperature of {beta:.3g}"


def _target(evidence: Evidence) -> str:
    target = evidence.settings.get("ess_target")
    return f"{target:g}" if isinstance(target, int | float) else "set by a schedule"
