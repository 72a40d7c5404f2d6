"""f-divergences and other objectives beside SimCLR."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks import record
from benchmarks.cifar10 import figures
from benchmarks.cifar10.claims import Claim, joined
from benchmarks.cifar10.pages.book import Book, cell_of
from benchmarks.cifar10.pages.common import (
    GAUGES,
    Page,
    cell_row,
    findings_of,
    gains_of,
    intervals,
    listed,
    made_page,
    points_text,
    protocols,
    times_sign,
)
from benchmarks.cifar10.plan import LITERATURE_LINEAR, NCE, SIMCLR
from benchmarks.cifar10.summary import Cell, Judge, mean_accuracy, pooled_spread
from flatclr.evaluation.intervals import Score

LEVEL = 0.1  # points within which the literature has two alike


def divergence_page(book: Book) -> Page:
    simclr = cell_of(book.cells("grid"), SIMCLR, book.scale.large)
    assert simclr is not None, "the plan has it"
    all_seeds = book.cells("fdiv", "fdiv-more")
    table = [simclr, *(all_seeds if any(len(cell.runs) > 1 for cell in all_seeds) else book.cells("fdiv"))]
    spread, judge = book.spread, Judge.over([(cell, simclr) for cell in table[1:]], book.spread)
    scores = {
        cell.objective: {p: s for p in figures.PROTOCOLS if (s := mean_accuracy(cell, p, spread[p])) is not None}
        for cell in table
    }
    says = [
        *(_against_simclr(table, simclr, protocol, judge) for protocol in figures.PROTOCOLS),
        f"After long training the literature has these linear accuracies, without spread (poster of f-MICL): "
        f"{_literature()}.",
    ]
    claims = _divergence_claims(table, simclr, judge)
    cannot = (
        "What these objectives reach with learning rates and constants of their own. All take the rate tuned on "
        f"InfoNCE and the constants of their papers.{_resolved(table, simclr, judge)} Intervals rest on the spread of "
        f"InfoNCE and FlatNCE over seeds, as if that of these objectives were no larger{_own_spread(book, table[1:])}."
    )
    findings = findings_of(claims, cannot, says)
    text = listed(
        f"Batch {book.scale.large}, {book.scale.epochs:g} epochs. f-MICL has the Gaussian kernel. SimCLR is InfoNCE at "
        f"temperature {NCE[SIMCLR]['temperature']:g}, from the grid.",
        *protocols(book.scale),
        *intervals(judge),
        *GAUGES,
        "ESS, bound and beta are those at the scale an objective trains with.",
    )
    rows = [cell_row(cell, spread) for cell in table]
    shown = {"f_divergences": figures.objectives_figure(scores)} if sum(map(bool, scores.values())) > 1 else {}
    runs = [run for cell in (*table[1:], simclr) for run in cell.planned]
    return made_page(
        book, "f-divergences", runs, ["fdiv", "fdiv-more", "grid"], [text, record.markdown(rows)], findings, shown
    )


def _own_spread(book: Book, table: Sequence[Cell]) -> str:
    """Both deviations, where there are seeds to tell."""
    parts = []
    for protocol, name in figures.PROTOCOLS.items():
        own, assumed = pooled_spread(table, protocol), book.spread[protocol]
        if own.freedom and assumed.freedom:
            parts.append(f"{100 * own.deviation:.1f} against {100 * assumed.deviation:.1f} points by {name}")
    return f" (it is {joined(parts)})" if parts else ""


def _literature() -> str:
    named = {"SimCLR" if name == SIMCLR else name: value for name, value in LITERATURE_LINEAR.items()}
    return joined(f"{name} {value:.2f}" for name, value in named.items())


def _divergence_claims(table: Sequence[Cell], simclr: Cell, judge: Judge) -> list[Claim]:
    """On which side of SimCLR the literature has each by linear probe, and which are above it by kNN."""
    claims = []
    for cell in table:
        gains = {} if cell is simclr else gains_of(cell, simclr, judge)
        lead = LITERATURE_LINEAR[cell.objective] - LITERATURE_LINEAR[SIMCLR]
        if "linear" in gains and abs(lead) >= LEVEL:
            above = lead > 0
            predicate = f"is {'above' if above else 'below'} SimCLR by linear probe, as in the literature"
            claims.append(Claim(cell.objective, predicate, {"linear": times_sign(gains["linear"], 1 if above else -1)}))
        if "kNN" in gains:
            seeds = " (one seed each)" if len(cell.runs) == 1 else ""
            claims.append(Claim(cell.objective, f"is above SimCLR by kNN{seeds}", {"kNN": gains["kNN"]}))
    return claims


def _resolved(table: Sequence[Cell], simclr: Cell, judge: Judge) -> str:
    """What the literature's differences would need."""
    gains = [gain for cell in table if cell is not simclr and (gain := judge.difference(cell, simclr, "linear"))]
    if not gains or math.isnan(gains[0].low):
        return ""
    gap = max(abs(value - LITERATURE_LINEAR[SIMCLR]) for value in LITERATURE_LINEAR.values())
    half = max(100 * (gain.high - gain.low) / 2 for gain in gains)
    return f" The literature's differences from SimCLR are at most {gap:.1f} points; these runs resolve {half:.1f}."


def _against_simclr(table: Sequence[Cell], simclr: Cell, protocol: str, judge: Judge) -> str | None:
    done = [cell for cell in table if cell.values(protocol)]
    if len(done) < 2 or not simclr.values(protocol):
        return None
    best = max(done, key=lambda cell: statistics.fmean(cell.values(protocol)))
    verdicts: dict[str, list[str]] = {}
    for cell in done:
        gain = judge.difference(cell, simclr, protocol)
        if cell is not simclr and gain is not None:
            verdicts.setdefault(_verdict(gain), []).append(f"{cell.objective} ({points_text(gain)})")
    highest = 100 * statistics.fmean(best.values(protocol))
    listed = " ".join(f"{verdict} SimCLR: {joined(names)}." for verdict, names in verdicts.items())
    name = figures.PROTOCOLS[protocol]
    return f"By {name}, {best.objective} is highest, with {highest:.1f} %. Differences are in points. {listed}"


def _verdict(gain: Score) -> str:
    if math.isnan(gain.low):
        return "Too few seeds to be compared with"
    return "Above" if gain.low > 0 else "Below" if gain.high < 0 else "Not told apart from"
