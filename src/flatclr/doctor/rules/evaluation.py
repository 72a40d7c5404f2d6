"""What holds for training images alone, what the bound hides, and numbers that say too little."""

from __future__ import annotations

import math

from flatclr.doctor import thresholds as T
from flatclr.doctor.diagnosis import Finding
from flatclr.doctor.evidence import Evidence, Series
from flatclr.doctor.remedies import grouped_norm, of_run, slower, stronger_views, train_command
from flatclr.doctor.rules.registry import rule


@rule("overfitting", effect_of=("false_negatives",))
def overfitting(evidence: Evidence) -> Finding | None:
    """After several passes the bound of training images is above that of images held out.

    Where these still gain, nothing is lost yet, and only a wide gap is a fault.
    """
    seen, held_out = evidence.series("seen_mi_nats"), evidence.series("held_out_mi_nats")
    passes = evidence.last("epoch")
    if not seen or not held_out or seen.last <= 0 or (passes is not None and passes < T.PASSES_TO_MEMORISE):
        return None
    gap = (seen.last - held_out.last) / seen.last
    late = evidence.second_half("held_out_mi_nats")
    gains = bool(late) and late.last >= max(late.first + T.RISEN_NATS, T.STILL_GROWING * late.first)
    if gap < (T.GAP_WHILE_RISING if gains else T.HELD_OUT_GAP) or seen.last - held_out.last < T.GAP_NATS:
        return None
    best = held_out.steps[held_out.values.index(max(held_out.values))]
    peaked = 0 < best < evidence.steps
    return Finding(
        "overfitting",
        "The network knows the training images by heart",
        cost=min(0.9, 0.4 + gap),
        evidence=f"The views of training images share {seen.last:.2f} nats, those of held-out images "
        f"{held_out.last:.2f}, which were at their best at step {best:.0f}.",
        cause="There are too few images for so many steps: the network tells them apart by what no other image has.",
        remedy="Train on more images, for fewer steps, or with stronger views.",
        command=train_command(evidence, steps=int(best), epochs=None)
        if peaked
        else train_command(evidence, views=stronger_views(evidence)),
        series=("seen_mi_nats", "held_out_mi_nats", "knn"),
    )


@rule("knn_falling", effect_of=("overfitting", "learning_rate_too_high", "collapse", "dead_batch_norm"))
def knn_falling(evidence: Evidence) -> Finding | None:
    """Accuracy falls while the bound rises: what is learnt is not what the labels are about."""
    knn, samples = evidence.series("knn"), evidence.last("knn_samples")
    shared = evidence.series("pool_mi_best_nats")
    if len(knn) < T.FEWEST_EVALUATIONS or not shared:
        return None
    best = max(knn.values)
    at = knn.steps[knn.values.index(best)]
    fallen = best - knn.last
    # that of two samples, which is more than that of one that is looked at twice, as evaluations do
    error = math.sqrt(2 * best * (1 - best) / (samples or T.ASSUMED_SAMPLES))
    recovers = knn.last - min(knn.values) > error  # as what random features know is lost, before more is learnt
    risen = shared.last - shared.values[shared.steps.index(at)] if at in shared.steps else 0.0
    if recovers or fallen < max(T.FALLEN_POINTS, T.FALLEN_ERRORS * error) or risen < T.RISEN_NATS:
        return None
    return Finding(
        "knn_falling",
        "Accuracy falls while the bound rises",
        cost=min(0.9, 0.5 + 2 * fallen),
        evidence=f"kNN accuracy fell from {best:.1%} at step {at:.0f} to {knn.last:.1%}, while the views came to share "
        f"{risen:.2f} nats more.",
        cause="Images differ in something that all their views keep and that says nothing of their class: a watermark, "
        "a border, the noise of a camera.",
        remedy="Look at the nearest neighbours on the page for what they have in common, and change it in the views or "
        "remove it from the images.",
        command=of_run(evidence, "report"),
        series=("knn", "pool_mi_best_nats"),
    )


@rule("evaluation_too_small")
def evaluation_too_small(evidence: Evidence) -> Finding | None:
    """The interval of the accuracy is wider than what evaluations are to tell apart."""
    knn, samples = evidence.last("knn"), evidence.last("knn_samples")
    if knn is None or samples is None:
        return None
    spread = max(knn * (1 - knn), T.LEAST_VARIANCE)
    half = 1.96 * math.sqrt(spread / samples)
    if half < T.HALF_WIDTH:
        return None
    limit = evidence.settings.get("eval_samples")
    all_seen = isinstance(limit, int) and samples < limit
    return Finding(
        "evaluation_too_small",
        "Evaluations are too small to tell",
        cost=min(0.5, 0.2 + half),
        evidence=f"kNN accuracy is {knn:.1%} ± {half:.1%} (95 %), from {samples:.0f} images.",
        cause="With so few test images two encoders, or two steps, cannot be told apart.",
        remedy="Hold out more images, or evaluate on others that have labels."
        if all_seen
        else "Evaluate on all test images; eval_samples says how many training looks at.",
        command=of_run(evidence, "eval", "--protocol knn", *(["--data MORE_IMAGES"] if all_seen else [])),
        series=("knn",),
        price="nothing of what was learnt, but hides how much that is",
    )


@rule("dead_batch_norm", effect_of=("learning_rate_too_high",))
def dead_batch_norm(evidence: Evidence) -> Finding | None:
    """Units that say nothing, or running statistics that are not those of the data, and do not come nearer."""
    dead, gaps = evidence.last("dead_units"), evidence.series("statistics_gap")
    gap = gaps.last if gaps and gaps.steps[-1] >= T.SETTLED_STEPS else None  # before training they are 0 and 1
    many = dead is not None and dead >= T.DEAD_UNITS
    far = gap is not None and gap >= T.STATISTICS_GAP and not _nears(gaps)
    if not (many or far):
        return None
    said = [f"{dead:.0%} of the normalised units never say anything."] if many else []
    said += [f"Running statistics are {gap:.1f} standard deviations off those of the views."] if far else []
    return Finding(
        "dead_batch_norm",
        "Batch normalisation is dead",
        cost=max(
            min(0.9, 0.4 + 0.17 * (gap or 0.0)) if far else 0.0, min(0.9, 0.4 + 0.6 * (dead or 0.0)) if many else 0.0
        ),
        evidence=" ".join(said),
        cause="Units were pushed below zero and get no gradient."
        if many
        else "The network is evaluated with statistics that it was not trained with.",
        remedy="Lower the learning rate and warm up longer, or use group normalisation."
        if many
        else "Check the momentum of batch normalisation, take the statistics anew, or use group normalisation.",
        command=grouped_norm(evidence) or slower(evidence),
        series=("dead_units", "statistics_gap", "effective_rank"),
    )


def _nears(gaps: Series) -> bool:
    """Whether running statistics come nearer to those of the views, as they do while the weights move less and less."""
    return len(gaps) > 1 and gaps.last < T.STILL_FALLING * gaps.values[-2]
