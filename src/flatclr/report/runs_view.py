"""What the page of several runs says: who is best, what differs, and every run over its steps."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flatclr.evaluation.intervals import Score, student
from flatclr.evaluation.results import TRAINED
from flatclr.report.charts import curve_data, grouped, panel_data, run_data
from flatclr.report.panels import Curve, Panel
from flatclr.report.reading import RunRecord
from flatclr.report.run_view import percent
from flatclr.runs import WITHOUT_EFFECT

NUMBERS = 150_000  # of all curves of a page together, at most
DRAWN = 8  # runs whose curves a page shows at first
FEWEST_POINTS = 12
SEED = "seed"
Link = Callable[[RunRecord], str | None]  # to the page of a run, where it has one


@dataclass(frozen=True)
class Measure:
    """A number that runs are compared by.

    Args:
        name: in tables.
        value: of a run, NaN where it was not measured.
        is_share: whether it is shown in percent.
        is_result: whether runs can be ranked by it; more is better then.
    """

    name: str
    value: Callable[[RunRecord], float]
    is_share: bool = False
    is_result: bool = False

    def text(self, value: float) -> str:
        if math.isnan(value):
            return ""
        return percent(value) if self.is_share else f"{value:.4g}"


def _evaluated(protocol: str) -> Callable[[RunRecord], float]:
    def value(record: RunRecord) -> float:
        rows = () if record.evaluation is None else record.evaluation.rows
        own = [r for r in rows if (r.protocol, r.weights, r.layer) == (protocol, TRAINED, "output")]
        return own[0].best.value if own else math.nan

    return value


def _last(key: str) -> Callable[[RunRecord], float]:
    return lambda record: record.last(key)


MEASURES = (  # of those that can rank, the first that runs have does
    Measure("linear, eval", _evaluated("linear"), is_share=True, is_result=True),
    Measure("kNN, eval", _evaluated("knn"), is_share=True, is_result=True),
    Measure("linear", _last("linear"), is_share=True, is_result=True),
    Measure("kNN", _last("knn"), is_share=True, is_result=True),
    Measure("retrieval at 1", _last("retrieval_at_1"), is_share=True, is_result=True),
    Measure("pool MI, nats", _last("pool_mi_best_nats"), is_result=True),
    Measure("effective rank", _last("effective_rank")),
    Measure("loss", _last("loss")),
    Measure("steps", lambda record: float(record.steps)),
    Measure("minutes", lambda record: record.minutes or math.nan),
)


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side, the best first.

    Args:
        records: the runs.
        by: what they are ranked by; None where they measured nothing that could.
        differing: names of the settings that are not the same in all.
    """

    records: tuple[RunRecord, ...]
    by: Measure | None
    differing: tuple[str, ...]

    @classmethod
    def of(cls, records: Sequence[RunRecord], by: str | None = None) -> Comparison:
        """Ranked by the measure of this name, or by the first that most of the runs have.

        Raises:
            ValueError: no run has that measure.
        """
        measure = _measure(records, by)
        ranked = list(records)
        if measure is not None:
            ranked.sort(key=lambda record: _last_if_nan(measure.value(record)))
        return cls(tuple(ranked), measure, tuple(_differing(records)))

    @property
    def measures(self) -> list[Measure]:
        return [m for m in MEASURES if any(not math.isnan(m.value(record)) for record in self.records)]

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """Runs that differ in nothing but their seed, by what they have in common."""
        names = [name for name in self.differing if name != SEED]
        found = defaultdict(list)
        for number, record in enumerate(self.records):
            found[", ".join(f"{name} {record.words.get(name, 'none')}" for name in names) or "all"].append(number)
        return dict(found)

    @property
    def has_seeds(self) -> bool:
        """Whether some runs differ in their seed alone."""
        return any(len(own) > 1 for own in self.groups.values())


def records_of(paths: Sequence[Path]) -> list[RunRecord]:
    """The runs, each by the shortest name that tells it from the others."""
    whole = [path.resolve() for path in paths]
    common = Path(os.path.commonpath([path.parent for path in whole])) if whole else Path()
    return [RunRecord.read(path, name=str(path.relative_to(common)), with_pictures=False) for path in whole]


def require_measure(by: str) -> None:
    """Refuse a name that no table of runs has, before any run is made."""
    names = [measure.name for measure in MEASURES]
    if by.lower() not in (name.lower() for name in names):
        raise ValueError(f"--by must be a number that runs have, got {by!r}; they have {', '.join(map(repr, names))}.")


def _measure(records: Sequence[RunRecord], by: str | None) -> Measure | None:
    able = [m for m in MEASURES if m.is_result or by is not None]
    counts = [sum(not math.isnan(measure.value(record)) for record in records) for measure in able]
    if by is not None:
        known = [measure for measure, count in zip(able, counts, strict=True) if count]
        found = next((measure for measure in known if measure.name.lower() == by.lower()), None)
        if found is None:
            names = ", ".join(repr(measure.name) for measure in known) or "nothing yet"
            raise ValueError(f"--by must be a number that the runs have, got {by!r}; they have {names}.")
        return found
    return None if not any(counts) else able[counts.index(max(counts))]


def _last_if_nan(value: float) -> float:
    return math.inf if math.isnan(value) else -value


def _differing(records: Sequence[RunRecord]) -> list[str]:
    names = dict.fromkeys(name for record in records for name in record.config if name not in WITHOUT_EFFECT)
    return [name for name in names if len({record.words.get(name) for record in records}) > 1]


def row_of(comparison: Comparison, record: RunRecord) -> dict[str, Any]:
    """A run as plain values: its name, the settings that differ and what was measured."""
    settings = {name: record.values.get(name) for name in comparison.differing}
    measured = {m.name: v for m in comparison.measures if not math.isnan(v := m.value(record))}
    return {"run": record.name, "state": record.state, **settings, **measured}


def runs_view(comparison: Comparison, *, link: Link | None = None) -> dict[str, Any]:
    """Everything but the curves."""
    return {
        "summary": _summary(comparison),
        "ranking": ranking(comparison),
        "table": _table(comparison, link),
        "groups_table": _seeds_table(comparison),
        "differing": comparison.differing,
        "groups": grouped(_panels(comparison), alone=False),
    }


def _summary(comparison: Comparison) -> str:
    states = [record.state for record in comparison.records]
    counted = ", ".join(f"{states.count(word)} {word}" for word in dict.fromkeys(states))
    data = {record.resolved.get("data") or record.config.get("data") for record in comparison.records}
    on = f" on {data.pop()}" if len(data) == 1 and None not in data else ""
    return f"{len(states)} {'run' if len(states) == 1 else 'runs'}{on}: {counted}"


def ranking(comparison: Comparison) -> str:
    """Which is best by what, and whether seeds say so."""
    by = comparison.by
    if by is None or len(comparison.records) < 2:
        return ""
    means = [(name, mean_of([by.value(comparison.records[i]) for i in own])) for name, own in comparison.groups.items()]
    means = [(name, mean) for name, mean in means if not math.isnan(mean.value)]
    means.sort(key=lambda pair: -pair[1].value)
    if len(means) < 2:
        first = comparison.records[0]
        return f"Best by {by.name}: {first.name} with {by.text(by.value(first))}."
    (name, best), (_, second) = means[:2]
    said = f"Best by {by.name}: {name}, with {_scored(by, best)}. The next has {_scored(by, second)}"
    if math.isnan(best.low) or math.isnan(second.low):
        return f"{said}; one seed does not tell whether that is chance."
    return f"{said}; the intervals {'are apart' if best.low > second.high else 'overlap'}."


def _scored(by: Measure, mean: Score) -> str:
    if math.isnan(mean.low):
        return by.text(mean.value)
    low, high = (max(0.0, mean.low), min(1.0, mean.high)) if by.is_share else (mean.low, mean.high)
    return f"{by.text(mean.value)} [{by.text(low)}, {by.text(high)}]"


def mean_of(values: Sequence[float]) -> Score:
    """Over seeds, with Student's 95 % interval where there are two or more.

    >>> mean_of([1.0, 3.0])
    Score(value=2.0, low=-10.706, high=14.706)
    """
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Score(math.nan, math.nan, math.nan)
    mean = sum(known) / len(known)
    if len(known) < 2:
        return Score(mean, math.nan, math.nan)
    spread = math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1))
    half = student(len(known) - 1) * spread / math.sqrt(len(known))
    return Score(mean, mean - half, mean + half)


def _cell(shown: str, sort: Any) -> dict[str, Any]:
    return {"text": shown, "sort": sort}


def _table(comparison: Comparison, link: Link | None) -> dict[str, Any]:
    measures = comparison.measures
    rows = []
    for number, record in enumerate(comparison.records):
        values = [measure.value(record) for measure in measures]
        cells = [_cell(m.text(v), "" if math.isnan(v) else v) for m, v in zip(measures, values, strict=True)]
        cells += [_setting_cell(record, name) for name in comparison.differing]
        address = None if link is None else link(record)
        rows.append({"index": number, "name": record.name, "state": record.state, "link": address, "cells": cells})
    return {"columns": [*(m.name for m in measures), *comparison.differing], "rows": rows}


def _setting_cell(record: RunRecord, name: str) -> dict[str, Any]:
    value = record.values.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return _cell(record.words.get(name, ""), value if is_number else record.words.get(name, ""))


def _seeds_table(comparison: Comparison) -> dict[str, Any]:
    """The mean of every group of seeds; nothing where no two runs differ in the seed alone."""
    groups, measures = comparison.groups, [m for m in comparison.measures if m.is_result]
    if not comparison.has_seeds:
        return {"columns": [], "rows": []}
    rows = []
    for name, own in groups.items():
        means = [mean_of([measure.value(comparison.records[i]) for i in own]) for measure in measures]
        scored = [_cell(_scored(m, s), s.value) for m, s in zip(measures, means, strict=True)]
        rows.append([_cell(name, name), _cell(str(len(own)), len(own)), *scored])
    if comparison.by in measures:
        place = 2 + measures.index(comparison.by)
        rows.sort(key=lambda row: _last_if_nan(row[place]["sort"]))
    return {"columns": ["settings", "seeds", *(measure.name for measure in measures)], "rows": rows}


def _panels(comparison: Comparison) -> list[Panel]:
    return list(dict.fromkeys(panel for record in comparison.records for panel in record.panels))


def runs_data(comparison: Comparison, *, shown: Sequence[str] | None = None) -> dict[str, Any]:
    """What the page's script draws: the curves of all runs, or of those that are shown."""
    panels, records = _panels(comparison), comparison.records
    names = [record.name for record in records] if shown is None else shown
    drawn = [i for i, record in enumerate(records) if record.name in names]
    most = max(FEWEST_POINTS, min(600, NUMBERS // (4 * max(1, len(panels) * len(drawn)))))
    groups = list(comparison.groups.values())
    group_of = {i: number for number, own in enumerate(groups) for i in own}
    data = {}
    for panel in panels:
        curves = {i: panel.main(records[i].rows, records[i].facts) for i in drawn}
        curves = {i: curve for i, curve in curves.items() if curve.steps}
        made = [
            curve_data(_unbanded(curve, records[i].name), most=most, run=i, group=group_of[i])
            for i, curve in curves.items()
        ]
        data[panel.needs] = {**panel_data(panel, made), "averaged": _averaged(comparison, curves, most)}
    return {
        "kind": "runs",
        "runs": [_run(record, group_of[i]) for i, record in enumerate(records)],
        "shown": [i for i in range(len(records)) if i < DRAWN] if shown is None else drawn,
        "panels": data,
        "parallel": _parallel(comparison),
    }


def _unbanded(curve: Curve, name: str) -> Curve:
    """Bands of many runs would cover each other."""
    return Curve(name, curve.steps, curve.values)


def _run(record: RunRecord, group: int) -> dict[str, Any]:
    told = f"{record.name} {record.state} " + " ".join(f"{name}={word}" for name, word in record.words.items())
    return {**run_data(record), "group": group, "told": told.lower()}


def _averaged(comparison: Comparison, curves: Mapping[int, Curve], most: int) -> list[dict[str, Any]]:
    """The mean over the seeds of each group with its band, at the steps that all of them have."""
    made = list[dict[str, Any]]()
    if not comparison.has_seeds:
        return made
    for number, (name, own) in enumerate(comparison.groups.items()):
        found = [dict(zip(curves[i].steps, curves[i].values, strict=True)) for i in own if i in curves]
        if not found:
            continue
        steps = sorted(set.intersection(*(set(one) for one in found)))
        means = [mean_of([one[step] for one in found]) for step in steps]
        band = len(found) > 1
        curve = Curve(
            name,
            steps,
            [mean.value for mean in means],
            [mean.low for mean in means] if band else (),
            [mean.high for mean in means] if band else (),
        )
        first = next(i for i in own if i in curves)
        made.append(curve_data(curve, most=most, run=first, group=number))
    return made


def _parallel(comparison: Comparison) -> dict[str, Any] | None:
    """Axes of the settings that differ and of what was measured, for runs that have what they are ranked by."""
    by = comparison.by
    if by is None:
        return None
    records = [record for record in comparison.records if not math.isnan(by.value(record))]
    results = [m for m in comparison.measures if m.is_result and m is not by]
    axes = [_setting_axis(records, name) for name in comparison.differing]
    axes += [_measure_axis(records, m) for m in (*results, by) if _complete(records, m)]
    return {"dimensions": axes, "by": by.name, "values": [_scale(by, by.value(r)) for r in records]}


def _complete(records: Sequence[RunRecord], measure: Measure) -> bool:
    return all(not math.isnan(measure.value(record)) for record in records)


def _scale(measure: Measure, value: float) -> float:
    return float(f"{100 * value if measure.is_share else value:.5g}")


def _measure_axis(records: Sequence[RunRecord], measure: Measure) -> dict[str, Any]:
    unit = ", %" if measure.is_share else ""
    return {"label": f"{measure.name}{unit}", "values": [_scale(measure, measure.value(r)) for r in records]}


def _setting_axis(records: Sequence[RunRecord], name: str) -> dict[str, Any]:
    """Every value that was tried has a place of its own, in the order of numbers where they are."""
    values = [record.values.get(name) for record in records]
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    words = [record.words.get(name, "") for record in records]
    order = sorted(set(words), key=(lambda word: float(word)) if are_numbers else str)
    places = [order.index(word) for word in words]
    return {"label": name, "values": places, "tickvals": list(range(len(order))), "ticktext": order}
