"""The bound at its ceiling, and weights of the negatives that are all alike or those of one."""

from __future__ import annotations

from flatclr.doctor import thresholds as T
from flatclr.doctor.diagnosis import Finding
from flatclr.doctor.evidence import Evidence
from flatclr.doctor.remedies import train_command
from flatclr.doctor.rules.registry import rule

VANISHING = ("infonce", "supcon", "debiased")  # whose gradient goes to 0 with 1 - p(positive)
WITHOUT_TEMPERATURE = ("align_uniform", "barlow_twins", "vicreg", "spectral", "rpc", "fmicl")


@rule("bound_saturated", effect_of=("views_too_weak",))
def bound_saturated(evidence: Evidence) -> Finding | None:
    """InfoNCE's bound is near log(K + 1), the most a batch can show, and its gradient is gone with it."""
    saturation, ceiling = evidence.late("saturation"), evidence.late("ceiling_nats")
    if saturation is None or ceiling is None or evidence.objective not in (None, *VANISHING):
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
    """All negatives weigh the same: none of them teaches more than another."""
    ess = evidence.late("ess")
    if ess is None or not _temperature_decides(evidence) or ess < T.ESS_ALL_EQUAL:
        return None
    return Finding(
        "temperature_too_high",
        "The temperature is too high",
        cost=0.75,
        evidence=f"All negatives weigh the same: their effective sample size is {ess:.0%} of their number"
        f"{_beta(evidence)}.",
        cause="At so high a temperature hard negatives count no more than easy ones.",
        remedy="Let the ESS controller find the temperature, or lower it, say to 0.1.",
        command=train_command(evidence, ess_target=0.25),
        series=("ess", "beta"),
    )


@rule("temperature_too_low", effect_of=("collapse", "learning_rate_too_high"))
def temperature_too_low(evidence: Evidence) -> Finding | None:
    """A few negatives carry the whole gradient of an anchor, until the network squeezes its embeddings together."""
    ess, negatives, std = evidence.series("ess"), evidence.negatives, evidence.late("embedding_std")
    if not ess or negatives is None or not _temperature_decides(evidence):
        return None
    carrying = min(ess.early, ess.late) * negatives
    few = negatives >= T.MANY_NEGATIVES and carrying <= T.FEW_EFFECTIVE
    squeezed = std is not None and std < T.SQUEEZED_STD and ess.late < T.SQUEEZED_ESS
    if not (few or squeezed):
        return None
    narrow = f" The spread of the embeddings fell to {std:.2f} of an even one." if squeezed else ""
    return Finding(
        "temperature_too_low",
        "The temperature is too low",
        cost=0.78,
        evidence=f"Of {negatives:.0f} negatives {carrying:.1f} carry the gradient of an anchor{_beta(evidence)}."
        f"{narrow}",
        cause="At so low a temperature the nearest negative takes all the weight, be it a false one, and the network "
        "spends its steps on squeezing embeddings together.",
        remedy="Let the ESS controller find the temperature, or raise it, say to 0.1.",
        command=train_command(evidence, ess_target=0.25),
        series=("ess", "beta", "embedding_std"),
    )


@rule("controller_clamped", effect_of=("collapse", "learning_rate_too_high", "views_too_weak"))
def controller_clamped(evidence: Evidence) -> Finding | None:
    """The ESS controller cannot reach its target within its limits."""
    clamped = evidence.series("beta_clamped")
    ess = evidence.late("ess")
    if not clamped or ess is None:
        return None
    late = clamped.values[-max(1, round(T.LATE_SHARE * len(clamped))) :]
    share = sum(late) / len(late)
    if share < T.CLAMPED_SHARE:
        return None
    return Finding(
        "controller_clamped",
        "The ESS controller is at a limit",
        cost=0.65,
        evidence=f"At {share:.0%} of the last logged steps beta was at a limit{_beta(evidence)}; the ESS is {ess:.2f}, "
        f"its target {_target(evidence)}.",
        cause="The target cannot be reached within a factor of ten of the objective's own temperature.",
        remedy="Set a target that can be reached; 0.25 suits most data.",
        command=train_command(evidence, ess_target=0.25),
        series=("beta", "ess", "beta_clamped"),
    )


def _temperature_decides(evidence: Evidence) -> bool:
    """Whether it is a fixed temperature that sets how negatives weigh."""
    return not (evidence.is_controlled or evidence.has_critic or evidence.objective in WITHOUT_TEMPERATURE)


def _beta(evidence: Evidence) -> str:
    beta = evidence.late("beta")
    return "" if beta is None else f" at an inverse temperature of {beta:.3g}"


def _target(evidence: Evidence) -> str:
    target = evidence.settings.get("ess_target")
    return f"{target:g}" if isinstance(target, int | float) else "set by a schedule"
