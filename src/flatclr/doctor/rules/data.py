"""What the images, their views and the disk do to a run."""

from __future__ import annotations

from flatclr.doctor import thresholds as T
from flatclr.doctor.diagnosis import Finding
from flatclr.doctor.evidence import Evidence
from flatclr.doctor.remedies import milder_views, of_run, stronger_views, train_command
from flatclr.doctor.rules.registry import rule


@rule("false_negatives")
def false_negatives(evidence: Evidence) -> Finding | None:
    """Many negatives show the same as their anchor: near-duplicates, or images of its class."""
    return _near_duplicates(evidence) or _same_class(evidence)


def _near_duplicates(evidence: Evidence) -> Finding | None:
    rate, negatives = evidence.late("near_duplicates"), evidence.negatives
    if rate is None or negatives is None or rate * negatives < T.COLLISIONS_PER_ANCHOR:
        return None
    each = rate * negatives
    return Finding(
        "false_negatives",
        "Negatives are copies of their anchor",
        cost=min(0.85, 0.5 + 0.1 * each),
        evidence=f"Of two images {rate:.2%} are nearly the same, so that {each:.1f} of the {negatives:.0f} negatives "
        "of an anchor are copies of it.",
        cause="The loss pushes apart images that are the same.",
        remedy="Remove copies, or tell which images belong together with ids=, so that they are never negatives.",
        command=of_run(evidence, "neighbours", "--duplicates"),
        series=("near_duplicates", "alignment"),
    )


def _same_class(evidence: Evidence) -> Finding | None:
    rate = evidence.late("collision_rate")
    if rate is None or rate < T.COLLISION_RATE:
        return None
    return Finding(
        "false_negatives",
        "Many negatives are of their anchor's class",
        cost=0.6 * rate,
        evidence=f"{rate:.0%} of the negatives are of the class of their anchor.",
        cause="There are so few classes, or one is so large, that the loss pushes apart what belongs together.",
        remedy="Correct for it with the debiased objective, or use labels: positives of the same class.",
        command=train_command(evidence, objective="debiased", objective_options=None)
        or train_command(evidence, positives="class"),
        series=("collision_rate",),
    )


@rule("views_too_weak")
def views_too_weak(evidence: Evidence) -> Finding | None:
    """The other view of an image is found by its pixels alone."""
    found = evidence.late("pixel_match")
    if found is None or found < T.PIXELS_MATCH:
        return None
    return Finding(
        "views_too_weak",
        "The views are too weak",
        cost=0.82 * found,
        evidence=f"By pixels alone {found:.0%} of the views find the other view of their image.{_knn(evidence)}",
        cause="Views differ so little that the task is solved without knowing what an image shows.",
        remedy="Draw stronger views: smaller crops, more changes of colour.",
        command=train_command(evidence, views=stronger_views(evidence)),
        series=("pixel_match", "alignment", "knn", "pixel_knn"),
    )


@rule("views_too_strong")
def views_too_strong(evidence: Evidence) -> Finding | None:
    """Views share next to nothing, by the pixels as by the network, and the network no longer learns more.

    Pixels that find other views show that these share something: a network that does not see it is at fault, not they.
    """
    shared, found = evidence.series("pool_mi_best_nats"), evidence.late("pixel_match")
    if not shared or found is None or shared.last > T.LITTLE_SHARED_NATS or found > T.PIXELS_SHARE:
        return None
    if evidence.still_rises or not _was_trained(evidence):
        return None
    return Finding(
        "views_too_strong",
        "The views are too strong",
        cost=0.8,
        evidence=f"After {evidence.steps:.0f} steps the views of an image share {shared.last:.2f} nats, and its pixels "
        f"find the other view for {found:.1%} of the images.{_knn(evidence)}",
        cause="So little of an image is left in a view that two of them have nothing in common.",
        remedy="Draw milder views: larger crops, fewer changes of colour.",
        command=train_command(evidence, views=milder_views(evidence)),
        series=("pool_mi_best_nats", "alignment", "knn", "pixel_match"),
    )


def _was_trained(evidence: Evidence) -> bool:
    """Whether the weights had time, and moved; of others one cannot say what views let them learn."""
    updates = evidence.series("update_ratio")
    return evidence.steps >= T.SETTLED_STEPS and (not updates or max(updates.values) > T.UPDATE_TOO_SMALL)


@rule("data_starved")
def data_starved(evidence: Evidence) -> Finding | None:
    """The device waits for data."""
    waiting = evidence.late("data_wait_share")
    if waiting is None or waiting < T.WAITING:
        return None
    workers, held = evidence.settings.get("workers"), evidence.settings.get("resident_gib")
    changes: dict[str, float] = {"resident_gib": 4 * held} if isinstance(held, int | float) else {}
    if isinstance(workers, int):
        changes = {"workers": 2 * workers}
    return Finding(
        "data_starved",
        "The device waits for data",
        cost=0.7 * waiting,
        evidence=f"{waiting:.0%} of the time passes without a batch.",
        cause="Images are read, decoded and changed more slowly than the network learns from them.",
        remedy="Use more workers, smaller images, or hold decoded images in memory with a larger resident_gib.",
        command=train_command(evidence, **changes),
        series=("data_wait_share", "images_per_second"),
        price=f"{waiting:.0%} of the time",
    )


@rule("split_leak")
def split_leak(evidence: Evidence) -> Finding | None:
    """Test images are among the training images."""
    overlap = evidence.late("split_overlap")
    if overlap is None or overlap < T.OVERLAP:
        return None
    return Finding(
        "split_leak",
        "Test images are training images",
        cost=min(0.8, 0.5 + 0.5 * overlap),
        evidence=f"{overlap:.0%} of the test images are nearly the same as a training image.",
        cause="The splits share images, so that nearest neighbours find the answer itself and accuracies are too high.",
        remedy="Remove the shared images from one of the splits, and evaluate again.",
        command=of_run(evidence, "neighbours", "--duplicates"),
        series=("split_overlap", "knn"),
        price="nothing of what was learnt, which looks better than it is",
    )


def _knn(evidence: Evidence) -> str:
    knn, pixels = evidence.last("knn"), evidence.last("pixel_knn")
    if knn is None or pixels is None:
        return ""
    return f" kNN accuracy is {knn:.1%}, by raw pixels {pixels:.1%}."
