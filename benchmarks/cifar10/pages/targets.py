"""Targets of the effective sample size."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks import record
from benchmarks.cifar10 import figures
from benchmarks.cifar10.claims import Claim
from benchmarks.cifar10.pages.book import Book, cell_of
from benchmarks.cifar10.pages.common import (
    GAUGES,
    Page,
    cell_row,
    findings_of,
    gains_text,
    intervals,
    listed,
    made_page,
    points_text,
    protocols,
    seed_counts,
)
from benchmarks.cifar10.plan import CONTROLLED
from benchmarks.cifar10.summary import Cell, Judge, mean_accuracy
from flatclr.evaluation.intervals import Score

LITERATURE_ESS = (0.2, 0.4)


def ess_page(book: Book) -> Page:
    middle = cell_of(book.cells("grid"), CONTROLLED, book.scale.small)
    assert middle is not None, "the plan has it"
    runs = [*book.runs("ess"), *middle.planned]
    table, spread = sorted([*book.cells("ess"), middle], key=_target), book.spread
    inside, outside = ([c for c in table if _is_recommended(c) is wanted] for wanted in (True, False))
    judge = Judge.over([(one, other) for one in inside for other in outside], spread)
    found = {
        protocol: {_target(cell): score for cell in table if (score := mean_accuracy(cell, protocol, spread[protocol]))}
        for protocol in figures.PROTOCOLS
    }
    rows = [{"ESS target": f"{_target(cell):g}", **cell_row(cell, spread)} for cell in table]
    for row in rows:
        del row["objective"]
    says = [
        *(_best_target(table, judge, protocol) for protocol in figures.PROTOCOLS),
        *(_below(cell, _losses(cell, table, judge)) for cell in outside),
    ]
    gains = {
        name: gain
        for protocol, name in figures.PROTOCOLS.items()
        if (best := _best_by_side(table, protocol)) and (gain := judge.difference(best[True], best[False], protocol))
    }
    told = "{:g} to {:g}".format(*LITERATURE_ESS)
    claims = [Claim("The best target", f"is within {told}", gains)] if gains else []
    claims += [
        Claim(f"Target {_target(cell):g}", f"is below the best target within {told}{_seeds(cell)}", losses)
        for cell in outside
        if (losses := _losses(cell, table, judge))
    ]
    cannot = (
        f"Other batch sizes than {book.scale.small}, and runs longer than {book.scale.epochs:g} epochs."
        f"{seed_counts(table)} The runs do not tell whether the target matters by itself or by the temperature that "
        "comes of it."
    )
    findings = findings_of(claims, cannot, says)
    shown = {"ess": figures.targets_figure(found, LITERATURE_ESS)} if len(found["knn"]) > 1 else {}
    text = listed(
        f"FlatNCE at batch {book.scale.small}. The runs of target 0.25 are those of the grid.",
        *protocols(book.scale),
        *intervals(judge),
        *GAUGES,
    )
    return made_page(book, "ESS targets", runs, ["ess", "grid"], [text, record.markdown(rows)], findings, shown)


def _seeds(cell: Cell) -> str:
    return " (one seed)" if len(cell.runs) == 1 else ""


def _target(cell: Cell) -> float:
    return float(cell.planned[0].settings["ess_target"])


def _is_recommended(cell: Cell) -> bool:
    low, high = LITERATURE_ESS
    return low <= _target(cell) <= high


def _best_target(table: Sequence[Cell], judge: Judge, protocol: str) -> str | None:
    best = _best_by_side(table, protocol)
    if not best:
        return None
    told = "{:g} to {:g}".format(*LITERATURE_ESS)
    name = figures.PROTOCOLS[protocol]
    inside, outside = best[True], best[False]
    gain = judge.difference(inside, outside, protocol)
    assert gain is not None
    done = sum(bool(cell.values(protocol)) for cell in table)
    missing = "" if done == len(table) else f" of the {done} targets run"
    highest = max(best.values(), key=lambda cell: statistics.fmean(cell.values(protocol)))
    if gain.low > 0:
        verdict = f"So the literature's {told} is confirmed."
    elif gain.high < 0:
        verdict = f"So the literature's {told} is refuted."
    else:
        verdict = f"So the literature's {told} is neither confirmed nor refuted."
    return (
        f"By {name}, target {_target(highest):g} is best{missing}. The best within {told}, {_target(inside):g}, minus "
        f"the best outside, {_target(outside):g}, is {points_text(gain)} points. {verdict}"
    )


def _losses(cell: Cell, table: Sequence[Cell], judge: Judge) -> dict[str, Score]:
    """What the best target within the literature's range has more than this one, by every protocol."""
    return {
        name: loss
        for protocol, name in figures.PROTOCOLS.items()
        if (best := _best_by_side(table, protocol)) and (loss := judge.difference(best[True], cell, protocol))
    }


def _below(cell: Cell, losses: Mapping[str, Score]) -> str | None:
    told = "{:g} to {:g}".format(*LITERATURE_ESS)
    return f"The best target within {told} {gains_text(losses)} against target {_target(cell):g}." if losses else None


def _best_by_side(table: Sequence[Cell], protocol: str) -> dict[bool, Cell]:
    """The best target within what the literature recommends and the best outside; empty if either was not run."""
    done = [cell for cell in table if cell.values(protocol)]
    sides = {wanted: [cell for cell in done if _is_recommended(cell) is wanted] for wanted in (True, False)}
    if not all(sides.values()):
        return {}
    return {
        wanted: max(group, key=lambda cell: statistics.fmean(cell.values(protocol))) for wanted, group in sides.items()
    }
