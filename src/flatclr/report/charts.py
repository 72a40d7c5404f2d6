"""Panels as the page's script draws them: plain values, thinned so that a page stays small."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flatclr.report.panels import GROUPS, Curve, Panel
from flatclr.report.reading import RunRecord

POINTS = 600  # of a curve, at most


def panel_data(panel: Panel, curves: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A panel with its curves."""
    look = {"zero": panel.from_zero, "sparse": panel.is_sparse, "exact": panel.is_exact}
    return {**panel_head(panel), **look, "curves": list(curves)}


def panel_head(panel: Panel) -> dict[str, Any]:
    """What a page says of a panel."""
    return {
        "id": panel.needs,
        "title": panel.title,
        "caption": panel.caption,
        "unit": panel.unit,
        "log": panel.is_log,
    }


def grouped(panels: Sequence[Panel], *, alone: bool = True) -> list[dict[str, Any]]:
    """The panels by group, in the order of the page; `alone` where it is of one run."""
    groups = ((title, [_said(panel, alone) for panel in panels if panel.group == title]) for title in GROUPS)
    return [{"title": title, "panels": found} for title, found in groups if found]


def _said(panel: Panel, alone: bool) -> dict[str, Any]:
    return {**panel_head(panel), "caption": f"{panel.caption} {panel.alone if alone else ''}".strip()}


def curve_data(curve: Curve, *, most: int = POINTS, **more: Any) -> dict[str, Any]:
    """A curve as lists of numbers; None is a gap."""
    kept = kept_points(curve.values, most)
    data: dict[str, Any] = {
        "label": curve.label,
        "x": [_short(curve.steps[i]) for i in kept],
        "y": [_short(curve.values[i]) for i in kept],
        "reference": curve.is_reference,
        **more,
    }
    if curve.low:
        data |= {"low": [_short(curve.low[i]) for i in kept], "high": [_short(curve.high[i]) for i in kept]}
    return data


def kept_points(values: Sequence[float], most: int) -> list[int]:
    """Which points stand for all: of every stretch the lowest and the highest, so that no spike is lost.

    >>> kept_points([0.0, 9.0, 1.0, 2.0, -5.0, 3.0], most=4)
    [0, 1, 4, 5]
    >>> kept_points([1.0, 2.0], most=4)
    [0, 1]
    """
    if len(values) <= most:
        return list(range(len(values)))
    stretches, kept = max(1, most // 2), set[int]()
    for part in range(stretches):
        own = range(part * len(values) // stretches, (part + 1) * len(values) // stretches)
        known = [i for i in own if not math.isnan(values[i])] or [own[0]]
        kept |= {min(known, key=values.__getitem__), max(known, key=values.__getitem__)}
    return sorted(kept)


def _short(value: float) -> float | int | None:
    """Six digits: more than a screen shows."""
    if isinstance(value, int):
        return value
    return None if math.isnan(value) else float(f"{value:.6g}")


def run_data(record: RunRecord) -> dict[str, Any]:
    """What the script knows of a run: how its steps become epochs and minutes."""
    steps = kept_points(list(record.clock.values()), 100)
    clock = list(record.clock.items())
    timed = [clock[i] for i in steps if not math.isnan(clock[i][1])]
    return {
        "name": record.name,
        "steps_per_epoch": record.resolved.get("steps_per_epoch") or _steps_per_epoch(record),
        "clock": {"steps": [step for step, _ in timed], "minutes": [_short(minutes) for _, minutes in timed]},
    }


def _steps_per_epoch(record: RunRecord) -> float | None:
    """Of runs that did not note it."""
    found = [row["step"] / row["epoch"] for row in record.rows if row.get("epoch") and row.get("step")]
    return float(f"{found[-1]:.6g}") if found else None
