"""The panels of a report as one picture, where there is no browser: matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flatclr.plots import COLOURS, MUTED, figure_style, new_figure
from flatclr.report.panels import Panel, Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_INCHES = (3.6, 2.6)


def draw_panels(panels: Sequence[Panel], rows: Rows, config: Mapping[str, Any], *, columns: int = 1) -> Figure:
    """All of the panels in one figure, row by row."""
    rows_of_panels = math.ceil(len(panels) / columns)
    with figure_style():
        figure = new_figure(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows_of_panels)
        for place, panel in enumerate(panels, start=1):
            _draw(figure.add_subplot(rows_of_panels, columns, place), panel, rows, config)
    return figure


def _draw(axes: Axes, panel: Panel, rows: Rows, config: Mapping[str, Any]) -> None:
    curves, colours = panel.curves(rows, config), iter(COLOURS)
    for curve in curves:
        if curve.is_reference:
            axes.plot(curve.steps, curve.values, color=MUTED, linestyle="--", label=curve.label)
            continue
        colour = next(colours)
        axes.plot(curve.steps, curve.values, color=colour, marker="o" if panel.is_sparse else "", label=curve.label)
        if curve.low:
            axes.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    if panel.is_log and any(value > 0 for curve in curves for value in curve.values):
        axes.set_yscale("log")
    if panel.from_zero:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    if len(curves) > 1:
        axes.legend()
    axes.set_title(panel.title)
    axes.set_xlabel("step")
    axes.set_ylabel(panel.unit)
