"""Batch size and objective."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks import record
from benchmarks.cifar10 import figures
from benchmarks.cifar10.claims import Claim, joined
from benchmarks.cifar10.pages.book import FLAT_AGAINST, INFONCE, NOT_RUN, Book, Row, cell_of
from benchmarks.cifar10.pages.common import (
    GAUGES,
    Page,
    accuracy,
    cell_row,
    findings_of,
    gains_of,
    gains_text,
    intervals,
    listed,
    made_page,
    points_text,
    protocols,
    score_text,
    seed_counts,
    spoken,
    those_said,
)
from benchmarks.cifar10.plan import BETWEEN, CONTROLLED, NCE, SIMCLR, Scale
from benchmarks.cifar10.summary import Cell, Judge, gauge, pooled_spread, signal_to_noise
from flatclr.evaluation.intervals import Score
from flatclr.training.instruments import SNR_FLOOR


def batch_page(book: Book) -> Page:
    scale, table, equal = book.scale, book.grid(), book.cells("equal-updates")
    spread, judge = book.spread, book.batch_judge()
    first = [
        "## InfoNCE: the small batch against the large one",
        record.markdown(_batch_differences(table, judge, scale)),
        *those_said([compared_batches(table, judge, scale)]),
        "## All objectives at equal epochs",
        listed(*protocols(scale), *intervals(judge), *GAUGES, _reachable(scale)),
        record.markdown([cell_row(cell, spread) for cell in table]),
        *those_said([_untrained(book)]),
        "## At equal updates",
        f"Batch {scale.small} stops at the updates of batch {scale.large}, with a schedule of its own. It has seen "
        f"{scale.large // scale.small} times fewer images. Intervals rest on the spread over seeds of these runs.",
        record.markdown([cell_row(cell, {p: pooled_spread(equal, p) for p in spread}) for cell in equal]),
    ]
    says = [
        *(_flat_against_infonce(table, batch, judge) for batch in sorted({c.batch for c in table})),
        eight_times(table, judge, scale),
        _equal_updates(table, equal, judge, scale),
        _snr(table),
    ]
    cannot = (
        f"What happens beyond {scale.epochs:g} epochs, with other encoders or with other images.{seed_counts(table)} "
        f"All objectives of a batch size share one learning rate, tuned on {spoken(SIMCLR)}.{_confounded(table)}"
    )
    findings = findings_of(_batch_claims(table, judge, scale), cannot, says)
    drawn = {"batch_size": figures.accuracies_figure(table, spread), "gauges": figures.curves_figure(table)}
    runs = book.runs("grid", "equal-updates")
    shown = drawn if any(cell.runs for cell in table) else {}
    return made_page(book, "Batch size and objective", runs, ["grid", "equal-updates"], first, findings, shown)


def _batch_claims(table: Sequence[Cell], judge: Judge, scale: Scale) -> list[Claim]:
    small, large = scale.small, scale.large
    claims = [
        Claim(spoken(flat), f"is above {spoken(info)} at batch {batch}", gains_of(one, other, judge))
        for batch in sorted({cell.batch for cell in table})
        for flat, info in FLAT_AGAINST
        if (one := cell_of(table, flat, batch)) and (other := cell_of(table, info, batch))
    ]
    claims += [
        Claim(spoken(one.objective), f"loses from batch {large} to batch {small}", gains_of(other, one, judge))
        for one, other in _batch_pairs(table, scale)
    ]
    best, controlled = _best_infonce(table, scale), cell_of(table, CONTROLLED, small)
    if best and controlled:
        predicate = f"is above the best InfoNCE at batch {large}"
        claims.append(Claim(f"{spoken(CONTROLLED)} and batch {small}", predicate, gains_of(controlled, best, judge)))
    return [claim for claim in claims if claim.measured]


def _best_infonce(table: Sequence[Cell], scale: Scale) -> Cell | None:
    found = [cell for name in INFONCE if (cell := cell_of(table, name, scale.large)) is not None and cell.values("knn")]
    return max(found, key=lambda cell: statistics.fmean(cell.values("knn")), default=None)


def _batch_pairs(table: Sequence[Cell], scale: Scale) -> Iterator[tuple[Cell, Cell]]:
    for objective in INFONCE:
        small, large = (cell_of(table, objective, batch) for batch in (scale.small, scale.large))
        if small and large:
            yield small, large


def _batch_differences(table: Sequence[Cell], judge: Judge, scale: Scale) -> list[Row]:
    rows = []
    for small, large in _batch_pairs(table, scale):
        for protocol, name in figures.PROTOCOLS.items():
            gain = judge.difference(small, large, protocol)
            rows.append(
                {
                    "objective": small.objective,
                    "accuracy": name,
                    f"batch {small.batch}": accuracy(small, protocol, judge.spread[protocol]),
                    f"batch {large.batch}": accuracy(large, protocol, judge.spread[protocol]),
                    "difference, points": NOT_RUN if gain is None else points_text(gain),
                }
            )
    return rows


def compared_batches(table: Sequence[Cell], judge: Judge, scale: Scale) -> str | None:
    """Whether InfoNCE has anything to lose from a small batch here, by every protocol."""
    parts = []
    verdicts: dict[str, list[str]] = {}
    for small, large in _batch_pairs(table, scale):
        gains = gains_of(small, large, judge)
        if gains:
            name = spoken(small.objective)
            parts.append(f"{name} {gains_text(gains)}.")
            verdicts.setdefault(_batch_verdict(gains, scale.large // scale.small), []).append(name)
    if not parts:
        return None
    told = [verdict.format(joined(names)) for verdict, names in verdicts.items()]
    return "\n\n".join([f"Batch {scale.small} against batch {scale.large}:", listed(*parts), *told])


def _batch_verdict(gains: Mapping[str, Score], times_fewer: int) -> str:
    if any(math.isnan(gain.low) for gain in gains.values()):
        return "{}: too few seeds for a verdict."
    worse, level = ([p for p, gain in gains.items() if (gain.high < 0) is is_worse] for is_worse in (True, False))
    if not worse:
        return (
            f"No loss is shown for {{}} at the small batch, which makes {times_fewer} times the updates. So these runs "
            f"cannot say whether another objective saves a factor of {times_fewer} in batch size."
        )
    if level:
        return f"The loss of {{}} shows by {joined(worse)}, but not by {joined(level)}."
    return f"The loss of {{}} shows by {joined(worse)}: another objective could win it back."


def _flat_against_infonce(table: Sequence[Cell], batch: int, judge: Judge) -> str | None:
    parts = []
    for flat, info in FLAT_AGAINST:
        one, other = cell_of(table, flat, batch), cell_of(table, info, batch)
        gains = gains_of(one, other, judge) if one and other else {}
        if gains:
            parts.append(f"{spoken(flat)} {gains_text(gains)} against {spoken(info)}.")
    return listed(*parts, under=f"At batch {batch}:") if parts else None


def eight_times(table: Sequence[Cell], judge: Judge, scale: Scale) -> str | None:
    """The small batch with FlatNCE against the large one with the best InfoNCE."""
    best = _best_infonce(table, scale)
    small = cell_of(table, CONTROLLED, scale.small)
    gains = gains_of(small, best, judge) if small and best else {}
    if best is None or not gains:
        return None
    told = (
        f"Across batch sizes, {spoken(CONTROLLED)} and batch {scale.small} {gains_text(gains)} against "
        f"{spoken(best.objective)} and batch {scale.large}, the best InfoNCE by kNN."
    )
    if any(math.isnan(gain.low) or gain.high < 0 for gain in gains.values()):
        return told
    most = joined(f"{max(0.0, -100 * gain.low):.1f} {name} points" for name, gain in gains.items())
    told += f" The runs exclude a loss of more than {most}."
    itself = cell_of(table, best.objective, scale.small)
    losses = gains_of(itself, best, judge) if itself else {}
    if any(gain.high < 0 for gain in losses.values()):
        return told
    return f"{told} But {spoken(best.objective)} shows no loss at batch {scale.small} either: no saving is shown."


def _equal_updates(table: Sequence[Cell], equal: Sequence[Cell], judge: Judge, scale: Scale) -> str | None:
    parts = []
    for cell in equal:
        large = cell_of(table, cell.objective, scale.large)
        gains = gains_of(cell, large, judge) if large else {}
        if gains:
            parts.append(f"{spoken(cell.objective)} {gains_text(gains)}.")
    if not parts:
        return None
    fewer = f"with {scale.large // scale.small} times fewer images"
    return listed(*parts, under=f"Batch {scale.small} against batch {scale.large} at equal updates, {fewer}:")


def _snr(table: Sequence[Cell]) -> str | None:
    found = {(c.objective, c.batch): value for c in table if (value := signal_to_noise(c.runs)) is not None}
    if not found:
        return None
    (least, low), (most, high) = (pick(found.items(), key=lambda item: item[1]) for pick in (min, max))
    return (
        f"Over the last quarter, gradient SNR is between {low:.2f} ({spoken(least[0])}, batch {least[1]}) and "
        f"{high:.2f} ({spoken(most[0])}, batch {most[1]}). The {SNR_FLOOR:.2f} that noise alone reads are taken out "
        "here; the figure includes them. Eight batches tell little so close to that."
    )


def _confounded(table: Sequence[Cell]) -> str:
    """Objectives were not run at the same temperatures."""
    betas = {c.batch: beta for c in table if c.objective == CONTROLLED and (beta := gauge(c.runs, "beta")) is not None}
    fixed = sorted({1 / {**NCE, **BETWEEN}[c.objective]["temperature"] for c in table if c.objective in INFONCE})
    if not betas:
        return ""
    held = joined(f"{beta:.1f} at batch {batch}" for batch, beta in sorted(betas.items()))
    return (
        f" The runs do not tell objective from temperature: {spoken(CONTROLLED)} settled at a beta of {held}, and "
        f"InfoNCE ran at {joined(f'{beta:g}' for beta in fixed)} only."
    )


def _reachable(scale: Scale) -> str:
    """The bound is largest for positives at cosine 1; negatives have a mean cosine of about 0 at the least."""
    beta = 1 / NCE[SIMCLR]["temperature"]
    parts = []
    for batch in (scale.small, scale.large):
        negatives = 2 * batch - 2
        ceiling = math.log(negatives + 1)
        share = 1 - math.log1p(negatives * math.exp(-beta)) / ceiling
        parts.append(f"{share:.2f} of its ceiling at batch {batch}")
    return f"At temperature {1 / beta:g} the bound cannot pass about {joined(parts)}, however good the encoder."


def _untrained(book: Book) -> str | None:
    for run in book.there(book.runs("grid")):
        knn, linear = run.untrained("knn"), run.untrained("linear")
        if knn is not None and linear is not None:
            return f"The untrained encoder has {score_text(knn)} % by kNN and {score_text(linear)} % by linear probe."
    return None
