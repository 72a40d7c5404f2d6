"""Mutual information against accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from benchmarks import record
from benchmarks.cifar10 import figures
from benchmarks.cifar10.claims import Claim, joined
from benchmarks.cifar10.pages.book import NOT_RUN, Book, Row
from benchmarks.cifar10.pages.common import Page, findings_of, listed, made_page, neighbours, times_sign
from benchmarks.cifar10.plan import BETWEEN, NCE, NO_LOG_RATIO, OTHERS, STAGES, SWEPT, Scale, family
from benchmarks.cifar10.summary import (
    FEWEST_CELLS,
    FEWEST_RUNS,
    Checkpoint,
    Correlation,
    at_equal_epochs,
    checkpoints,
    correlation,
)
from flatclr.evaluation.intervals import Score

MEASURED_AGAINST = (
    ("pool_mi_nats", "pool MI", "0.65"),
    ("batch_mi_nats", "mini-batch MI", "none"),
)
ALL, AT_ONE_TIME, FIRST, LAST = "all", "all, at equal epochs", "first evaluation", "last evaluation"
WITHIN = "InfoNCE and FlatNCE"
Found = Mapping[str, Mapping[str, Correlation | None]]  # by group and quantity


def information_page(book: Book) -> Page:
    stages = ["grid", "grid-more", "tau", "equal-updates", "ess", "fdiv", "fdiv-more"]
    runs = [run for stage in stages for run in book.runs(stage) if not STAGES[stage].optional or run.name in book.kept]
    points = [p for run in runs if run.name in book.kept for p in checkpoints(book.kept[run.name], run.objective)]
    bounded = [p for p in points if p.objective not in NO_LOG_RATIO]
    groups = _groups_of(bounded, book.scale)
    text = listed(
        "The points are the evaluations within runs.",
        "Pool MI is InfoNCE's bound against a pool at the best beta. Mini-batch MI is the mean bound of the training "
        "batches logged since the evaluation before. Both are on training images.",
        "At equal epochs, the mean over all runs of the same length at that time is subtracted.",
        f"kNN classifies a sample of {book.scale.eval_samples:,} test images: {neighbours(book.scale.eval_samples)} "
        "among as many training images.",
        "95 % intervals come from a bootstrap that draws whole cells (objective and batch size, with all seeds). "
        f"Groups of fewer than {FEWEST_CELLS} cells have no interval, groups of fewer than {FEWEST_RUNS} runs no "
        "correlation. Each interval holds by itself.",
        f"{joined(NO_LOG_RATIO)} is left out: its scores are no log-ratios, so a bound of its batches says nothing. "
        "One row has it for pool MI, which is that of cosines.",
    )
    found = {
        name: {quantity: correlation(group, quantity) for quantity, *_ in MEASURED_AGAINST}
        for name, group in groups.items()
    }
    says = [_information_verdict(found, quantity) for quantity in MEASURED_AGAINST]
    claims = _information_claims(found)
    cannot = (
        "Cause. Within a run accuracy and bounds both grow with time, so correlations over all checkpoints are those "
        "of time as well. At one time they are not, but then they compare few objectives and temperatures."
    )
    findings = findings_of(claims, cannot, says)
    shown = {"mi_accuracy": figures.information_figure(points)} if points else {}
    rows = [_information_row(name, group, found[name]) for name, group in groups.items()]
    if len(points) > len(bounded):
        pool_alone = {"pool_mi_nats": correlation(points, "pool_mi_nats")}
        rows.insert(1, _information_row(f"{ALL} and {joined(NO_LOG_RATIO)}", points, pool_alone))
    tables = [text, record.markdown(rows)]
    return made_page(book, "Mutual information against accuracy", runs, stages, tables, findings, shown)


def _groups_of(points: Sequence[Checkpoint], scale: Scale) -> dict[str, list[Checkpoint]]:
    """Which checkpoints are looked at together; first and last are those of runs of full length."""
    longest = max((p.of for p in points), default=0)
    whole = [p for p in points if p.of == longest]
    groups = {
        ALL: list(points),
        WITHIN: [p for p in points if p.objective.startswith(("InfoNCE", "FlatNCE"))],
        AT_ONE_TIME: at_equal_epochs(points),
        FIRST: [p for p in whole if p.number == 1],
        LAST: [p for p in whole if p.is_last],
    }
    groups |= {f"batch {b}": [p for p in points if p.batch == b] for b in (scale.small, *scale.between, scale.large)}
    families = dict.fromkeys(map(family, (*NCE, *BETWEEN, *SWEPT, *OTHERS)))
    groups |= {name: [p for p in points if family(p.objective) == name] for name in families}
    return {name: group for name, group in groups.items() if group or name == ALL}


def _information_row(name: str, points: Sequence[Checkpoint], by_quantity: Mapping[str, Correlation | None]) -> Row:
    row = {"checkpoints": name, "points": str(len(points)), "runs": str(len({p.run for p in points}))}
    for quantity, label, _ in MEASURED_AGAINST:
        found = by_quantity.get(quantity)
        row[f"Pearson, {label}"] = NOT_RUN if not points else "" if found is None else _correlation(found.pearson)
        row[f"Spearman, {label}"] = NOT_RUN if not points else "" if found is None else _correlation(found.spearman)
    return row


def _information_claims(correlations: Found) -> list[Claim]:
    claims = []
    for (quantity, label, _), related in zip(MEASURED_AGAINST, (True, False), strict=True):
        for group, words in {ALL: "over all checkpoints", AT_ONE_TIME: "at equal epochs", LAST: "at the end"}.items():
            found = correlations.get(group, {}).get(quantity)
            if found is None:
                continue
            measured = {"Pearson": found.pearson, "Spearman": found.spearman}
            what = "goes with"
            if group == ALL and not related:
                what, measured = "is unrelated to", {name: _contradiction(score) for name, score in measured.items()}
            elif found.pearson.high < 0:
                what, measured = "goes against", {name: times_sign(score, -1) for name, score in measured.items()}
            literature = ", as in the literature" if group == ALL else ""
            subject = label[0].upper() + label[1:]
            claims.append(Claim(subject, f"{what} kNN accuracy {words}{literature}", measured))
    return claims


def _contradiction(score: Score) -> Score:
    """Below zero where a correlation is told from none; that there is none cannot be shown."""
    return Score(0.0, -1.0, 1.0) if score.low <= 0 <= score.high or math.isnan(score.low) else Score(-1.0, -1.0, -1.0)


def _information_verdict(correlations: Found, quantity: tuple[str, str, str]) -> str | None:
    name, label, told = quantity
    found = correlations[ALL][name]
    if found is None:
        return None
    parts = [f"{_correlation(found.pearson)} over all {found.points} checkpoints of {found.runs} runs"]
    others = {
        WITHIN: "over those of InfoNCE and FlatNCE",
        AT_ONE_TIME: "at equal epochs",
        FIRST: "at the first evaluation of runs of full length",
        LAST: "at their last",
    }
    for group, words in others.items():
        other = correlations.get(group, {}).get(name)
        if other is not None:
            parts.append(f"{_correlation(other.pearson)} {words}{_doubt(other.pearson)}")
    return f"Pearson's correlation of kNN accuracy with {label} is {joined(parts)}. The literature has {told}."


def _doubt(score: Score) -> str:
    return " (not told from zero)" if score.low <= 0 <= score.high else ""


def _correlation(score: Score) -> str:
    if math.isnan(score.low):
        return f"{score.value:.2f}"
    return f"{score.value:.2f} [{score.low:.2f}, {score.high:.2f}]"
