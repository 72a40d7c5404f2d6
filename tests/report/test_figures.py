"""The picture of a report shows the numbers of its panels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flatclr.report.figures import draw_panels
from flatclr.report.panels import ACCURACY, BOUND, ESS, OVERVIEW, PANELS, Panel
from flatclr.training.config import TrainConfig
from tests.support.reports import ROWS, log_row


def lines_of(panel: Panel, rows: list[dict[str, Any]], **settings: Any) -> dict[str, list[float]]:
    (axes,) = draw_panels([panel], rows, TrainConfig().to_dict() | settings).axes
    return {str(line.get_label()): [float(y) for y in line.get_ydata()] for line in axes.lines}


def test_pictures_show_the_numbers_of_the_metrics() -> None:
    assert lines_of(BOUND, ROWS) == {"bound of the batch": [2.1, 2.2], "ceiling": [4.14, 4.14]}
    assert lines_of(ACCURACY, ROWS) == {
        "kNN accuracy": pytest.approx([75.31, 81.24]),
        "untrained": pytest.approx([75.31, 75.31]),
    }
    assert lines_of(ESS, ROWS) == {"mean": pytest.approx([0.29, 0.28]), "target": [0.25, 0.25]}


def test_the_band_spans_the_outer_quantiles() -> None:
    (axes,) = draw_panels([ESS], ROWS, {}).axes
    corners = axes.collections[0].get_paths()[0].vertices
    assert {tuple(corner) for corner in np.round(corners, 6)} == {(10, 0.1), (20, 0.1), (10, 0.41), (20, 0.42)}


def test_several_panels_share_a_figure_row_by_row() -> None:
    figure = draw_panels(OVERVIEW, ROWS, {}, columns=2)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [panel.title for panel in OVERVIEW]


def test_what_is_not_finite_can_be_drawn() -> None:
    rows = [log_row(1), log_row(2, loss="nan", gradient_norm="inf", ess_quantiles=None)]
    draw_panels(PANELS[:6], [dict.fromkeys(row, "nan") | {"step": row["step"]} for row in rows], {})
