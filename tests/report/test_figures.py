"""The pictures of a report show the numbers of the metrics."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatclr.plots import inline_svg
from flatclr.report.figures import ACCURACY, BOUND, ESS, PANELS, Panel, available, draw_panels, series
from flatclr.training.config import TrainConfig
from tests.support.reports import ROWS, log_row, new_run, only


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_without_its_key_or_steps_is_left_out(panel: Panel) -> None:
    keyless = [{key: value for key, value in row.items() if key != panel.needs} for row in ROWS]
    assert available([panel], ROWS) == [panel]
    assert available([panel], keyless) == []
    assert available([panel], [{panel.needs: 1.0}]) == []


def test_what_is_not_finite_is_a_gap_in_the_line() -> None:
    rows = [
        log_row(1),
        log_row(2, loss="nan"),
        log_row(3, loss="inf", gradient_norm="inf", ess_quantiles=None),
        log_row(4),
    ]
    steps, values = series(rows, "loss")
    assert steps == [1, 2, 3, 4]
    np.testing.assert_array_equal(np.isfinite(values), [True, False, False, True])
    nothing = [dict.fromkeys(row, "nan") | only(row) for row in rows]
    for shown in (rows, nothing):
        inline_svg(draw_panels(available(PANELS, shown), shown, {}, columns=3))


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
    for panel in PANELS[4:]:
        expected = [row[panel.needs] for row in ROWS if panel.needs in row]
        lines = lines_of(panel, ROWS)
        assert lines.pop("noise alone", [0.378, 0.378]) == pytest.approx([0.378, 0.378], abs=1e-3)
        lines.pop("images", None)
        assert list(lines.values()) == [expected]


def test_a_fixed_temperature_has_no_target() -> None:
    assert "target" not in lines_of(ESS, ROWS, temperature=0.1)
    assert "target" not in lines_of(ESS, ROWS, ess_target=None)


def test_a_schedule_of_targets_is_drawn_as_it_was_held() -> None:
    rows = [log_row(step, epoch=step / 10) for step in (10, 20, 40)]
    assert lines_of(ESS, rows, ess_target=[[0, 0.5], [2, 0.3]])["target"] == pytest.approx([0.4, 0.3, 0.3])


def test_the_band_spans_the_outer_quantiles() -> None:
    (axes,) = draw_panels([ESS], ROWS, {}).axes
    corners = axes.collections[0].get_paths()[0].vertices
    assert {tuple(corner) for corner in np.round(corners, 6)} == {(10, 0.1), (20, 0.1), (10, 0.41), (20, 0.42)}


def test_several_panels_share_a_figure_row_by_row() -> None:
    figure = draw_panels(PANELS[:5], ROWS, {}, columns=3)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [panel.title for panel in PANELS[:5]]
    assert inline_svg(figure).startswith("<svg")


def test_figures_cost_nothing_until_drawn_and_leave_pyplot_alone(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", [only(row, "loss") for row in ROWS])
    code = f"""
import sys
import flatclr.cli.main, flatclr.report.page
assert "matplotlib" not in sys.modules
flatclr.report.page.write_report({str(run.path)!r})
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ, timeout=60)
