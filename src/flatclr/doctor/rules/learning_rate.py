"""Steps that are too long or too short, and gradients that are noise."""

from __future__ import annotations

from flatclr.doctor import thresholds as T
from flatclr.doctor.diagnosis import Finding
from flatclr.doctor.evidence import Evidence
from flatclr.doctor.remedies import USUAL_UPDATE, another_rate, train_command
from flatclr.doctor.rules.registry import rule


@rule("learning_rate_too_high")
def learning_rate_too_high(evidence: Evidence) -> Finding | None:
    """Steps are so long that weights are thrown about, or the loss is no longer finite."""
    updates, bad = evidence.series("update_ratio"), evidence.last("bad_steps") or 0.0
    moved = max(updates.values) if updates else None
    too_far = moved is not None and moved > T.UPDATE_TOO_LARGE
    bad_share = bad / max(evidence.steps, 1.0)
    if not (too_far or bad_share > T.BAD_STEPS or _diverged(evidence)):
        return None
    rate = evidence.learning_rate
    lower = None if rate is None else another_rate("learning_rate_too_high", evidence, rate)
    return Finding(
        "learning_rate_too_high",
        "The learning rate is too high",
        cost=0.95,
        evidence=_lengths(evidence, moved, bad),
        cause="Each step overshoots, and the next has to undo it.",
        remedy=f"Lower the learning rate{'' if lower is None else f' to about {lower:g}'}, warm up longer, or clip "
        "gradients.",
        command=None if lower is None else train_command(evidence, learning_rate=lower),
        series=("loss", "update_ratio", "gradient_norm", "bad_steps"),
    )


@rule("learning_rate_too_low")
def learning_rate_too_low(evidence: Evidence) -> Finding | None:
    """Steps are so short that the weights stay where they began."""
    updates = evidence.series("update_ratio")
    if not updates or max(updates.values) > T.UPDATE_TOO_SMALL:
        return None
    rate = evidence.learning_rate
    moved = max(*updates.values, 1e-12)
    higher = None if rate is None else another_rate("learning_rate_too_low", evidence, rate)
    loss = evidence.series("loss")
    change = f" The loss went from {loss.early:.3f} to {loss.late:.3f}." if loss else ""
    return Finding(
        "learning_rate_too_low",
        "The learning rate is too low",
        cost=0.93,
        evidence=f"The longest step moved a weight by {moved:.1g} of its length, where {USUAL_UPDATE:g} is usual."
        f"{change}",
        cause="The weights hardly leave the values they began with.",
        remedy=f"Raise the learning rate{'' if higher is None else f' to about {higher:g}'}.",
        command=None if higher is None else train_command(evidence, learning_rate=higher),
        series=("loss", "update_ratio", "gradient_norm"),
    )


_BRING_NOISE = (  # the last three leave a vanished gradient, or that of a few negatives
    "learning_rate_too_high",
    "collapse",
    "views_too_strong",
    "views_too_weak",
    "false_negatives",
    "bound_saturated",
    "temperature_too_low",
    "controller_clamped",
)


@rule("gradient_noise", effect_of=_BRING_NOISE)
def gradient_noise(evidence: Evidence) -> Finding | None:
    """The gradients of independent batches have next to nothing in common, and little was learnt.

    Where much was, noise is what is left of the gradient at a minimum.
    """
    measured, shared = (evidence.series(name).after(0) for name in ("gradient_snr", "pool_mi_best_nats"))
    if min(len(measured), len(shared)) < T.FEWEST_EVALUATIONS:
        return None
    squares = [((T.SNR_BATCHES - 1) * snr**2 - 1) / T.SNR_BATCHES for snr in measured.values]
    signal = sum(squares) / len(squares)
    in_all = shared.last - evidence.series("pool_mi_best_nats").first
    learnt = shared.last - shared.first > max(T.LEARNT_NATS, T.LEARNT_SHARE * shared.first)
    learnt = learnt or in_all > T.LEARNT_IN_ALL_NATS
    if signal > T.SIGNAL_IN_NOISE or learnt or evidence.still_rises:
        return None
    batch = evidence.settings.get("batch_size")
    larger = 8 * batch if isinstance(batch, int) else None
    ratio = sum(measured.values) / len(measured)
    return Finding(
        "gradient_noise",
        "The gradient is noise",
        cost=0.7,
        evidence=f"Over {len(measured)} evaluations the signal-to-noise ratio of the gradient is {ratio:.2f} on "
        f"average, where noise alone has {(T.SNR_BATCHES - 1) ** -0.5:.2f}, and the views share {shared.last:.2f} "
        f"nats, after {shared.first:.2f} at step {shared.steps[0]:.0f}.",
        cause="Batches are so small, or the loss so erratic, that each step goes a way of its own.",
        remedy=f"Use a larger batch{'' if larger is None else f', say {larger}'}, or a loss of less variance.",
        command=None if larger is None else train_command(evidence, batch_size=larger),
        series=("gradient_snr", "gradient_norm"),
    )


def _diverged(evidence: Evidence) -> bool:
    """Where updates were not measured: a loss that ends above where it began."""
    loss = evidence.series("loss")
    if evidence.series("update_ratio") or len(loss) < T.FEWEST_ROWS:
        return False
    return loss.late > loss.early + T.LOSS_ROSE * max(abs(loss.early), 1.0)


def _lengths(evidence: Evidence, moved: float | None, bad: float) -> str:
    said = []
    if moved is not None:
        said.append(f"The longest step moved a weight by {moved:.2g} of its length, where {USUAL_UPDATE:g} is usual.")
    if bad:
        said.append(f"{bad:.0f} steps were not finite.")
    loss = evidence.series("loss")
    if loss:
        said.append(f"The loss went from {loss.early:.3g} to {loss.late:.3g}.")
    return " ".join(said)
