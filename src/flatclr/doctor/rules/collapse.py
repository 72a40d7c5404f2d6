"""Embeddings that lie at one point, or in a few dimensions."""

from __future__ import annotations

from flatclr.doctor import thresholds as T
from flatclr.doctor.diagnosis import Finding
from flatclr.doctor.evidence import Evidence
from flatclr.doctor.remedies import slower, train_command
from flatclr.doctor.rules.registry import rule


@rule("collapse", effect_of=("learning_rate_too_high", "views_too_strong", "dead_batch_norm"))
def collapse(evidence: Evidence) -> Finding | None:
    """All embeddings are nearly the same: they lie in a narrow cone, and the objective cannot tell them apart in it.

    Every run begins in such a cone; where the bound still rises it is on its way out.
    """
    std, uniformity, ess = (evidence.late(name) for name in ("embedding_std", "uniformity", "ess"))
    narrow = (std is not None and std < T.COLLAPSED_STD) or (
        uniformity is not None and uniformity > T.COLLAPSED_UNIFORMITY
    )
    at_a_point = std is not None and std < T.POINT_STD
    if not (at_a_point or (narrow and (ess is None or ess > T.COLLAPSED_ESS) and not evidence.still_rises)):
        return None
    return Finding(
        "collapse",
        "The embeddings have collapsed",
        cost=0.98,
        evidence=_numbers(std, uniformity, evidence.late("head_rank")),
        cause="Nothing keeps embeddings apart, so that all images have come to have the same one.",
        remedy="Give the objective what spreads embeddings, its negatives or its variance term, at full weight; then "
        "lower the learning rate.",
        command=train_command(evidence, objective="flatnce", objective_options=None) or slower(evidence),
        series=("embedding_std", "uniformity", "head_rank"),
    )


@rule("dimensional_collapse", effect_of=("collapse", "learning_rate_too_high"))
def dimensional_collapse(evidence: Evidence) -> Finding | None:
    """The head uses few of the dimensions that it has and the encoder offers, and does not come to use more."""
    head, encoder = evidence.late("head_rank"), evidence.late("effective_rank")
    if head is None:
        return None
    known = (encoder, evidence.settings.get("embedding"), evidence.late("embedding_width"))
    offered = min((float(value) for value in known if value is not None), default=0.0)
    if head >= T.HEAD_RANK_SHARE * offered or _widens(evidence):
        return None
    return Finding(
        "dimensional_collapse",
        "The embeddings use few dimensions",
        cost=0.75 * (1 - head / offered),
        evidence=f"The effective rank of the embeddings is {head:.1f}, where {offered:.0f} dimensions are to be had.",
        cause="Dimensions of the embedding have become copies of each other, so that the loss sees few directions.",
        remedy="Give the objective what decorrelates dimensions, its negatives or its covariance term, at full weight, "
        "and the head its full width.",
        command=train_command(evidence, objective="flatnce", objective_options=None, head_width=None)
        or slower(evidence),
        series=("head_rank", "effective_rank"),
    )


def _widens(evidence: Evidence) -> bool:
    """Whether embeddings are on their way out of the few dimensions that training began with: their rank is well above
    its lowest, and grows."""
    trained, late = evidence.series("head_rank").after(0), evidence.second_half("head_rank")
    if not trained or not late:
        return False
    left = trained.last >= T.RANK_LEFT_LOW * min(trained.values)
    return left and late.last >= T.STILL_GROWING * late.first


def _numbers(std: float | None, uniformity: float | None, rank: float | None) -> str:
    said = [] if std is None else [f"their spread is {std:.2g} of an even one"]
    said += [] if uniformity is None else [f"their uniformity is {uniformity:.2f}, where 0 is one point"]
    said += [] if rank is None else [f"their effective rank is {rank:.1f}"]
    text = ", ".join(said)
    return f"{text[:1].upper()}{text[1:]}."
