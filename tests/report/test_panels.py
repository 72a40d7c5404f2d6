"""The curves of a report are the numbers of the metrics, with their bands and what they are compared with."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flatclr.doctor.evidence import Evidence
from flatclr.doctor.rules import RULES
from flatclr.report.charts import curve_data, kept_points
from flatclr.report.panels import ACCURACY, ESS, PANELS, Curve, Panel, available, panels_for, panels_of, series
from tests.doctor.test_rules import EDGES
from tests.support.made_up_run import evidence
from tests.support.reports import ROWS, evaluation_row, log_row


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_without_its_key_or_steps_is_left_out(panel: Panel) -> None:
    keyless = [{key: value for key, value in row.items() if key != panel.needs} for row in ROWS]
    assert available([panel], ROWS) == [panel]
    assert available([panel], keyless) == []
    assert available([panel], [{panel.needs: 1.0}]) == []


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_the_first_curve_of_a_panel_is_its_metric(panel: Panel) -> None:
    found = [row for row in ROWS if panel.needs in row]
    first = panel.curves(ROWS, {})[0]
    assert first.steps == [row["step"] for row in found]
    assert first.values == pytest.approx([panel.lines[0].scale * row[panel.needs] for row in found])


def test_what_is_not_finite_is_a_gap_in_the_line() -> None:
    rows = [log_row(1), log_row(2, loss="nan"), log_row(3, loss="inf"), log_row(4)]
    steps, values = series(rows, "loss")
    assert steps == [1, 2, 3, 4]
    assert [math.isnan(value) for value in values] == [False, True, True, False]
    assert curve_data(Curve("loss", steps, values))["y"] == [3.0, None, None, 0.75]


def references(panel: Panel, rows: list[dict[str, Any]], **settings: Any) -> dict[str, list[float]]:
    return {curve.label: list(curve.values) for curve in panel.curves(rows, settings) if curve.is_reference}


def test_a_schedule_of_targets_is_drawn_as_it_was_held_and_a_fixed_temperature_has_none() -> None:
    rows = [log_row(step, epoch=step / 10) for step in (10, 20, 40)]
    assert references(ESS, rows, ess_target=[[0, 0.5], [2, 0.3]])["target"] == pytest.approx([0.4, 0.3, 0.3])
    assert references(ESS, rows, ess_target=0.25, temperature=0.1) == {}
    assert references(ESS, rows, ess_target=None) == {}


def test_the_band_of_an_accuracy_is_the_score_interval_over_the_test_samples() -> None:
    share, samples, z = 0.8, 400, 1.959964
    curve = ACCURACY.main([evaluation_row(5, share)], {"test_samples": samples, "eval_samples": 1000})
    centre = (share + z**2 / (2 * samples)) / (1 + z**2 / samples)
    half = z / (1 + z**2 / samples) * math.sqrt(share * (1 - share) / samples + z**2 / (4 * samples**2))
    assert curve.low == pytest.approx([100 * (centre - half)])
    assert curve.high == pytest.approx([100 * (centre + half)])
    assert ACCURACY.main([evaluation_row(5, share)], {}).low == ()


def test_a_metric_that_no_panel_knows_has_one_all_the_same() -> None:
    rows = [log_row(1, head_norm=0.01)]
    assert "Head norm" in [panel.title for panel in panels_for(rows)]
    assert [panel.needs for panel in panels_of(["mi_nats", "ceiling_nats", "head_norm", "gone"], rows)] == [
        "mi_nats",
        "head_norm",
    ]


def test_thinning_keeps_the_ends_of_every_stretch() -> None:
    values = [0.0] * 10_000
    values[1234], values[8765] = 7.0, -3.0
    kept = kept_points(values, 100)
    assert len(kept) <= 100
    assert {1234, 8765} <= set(kept)
    assert kept == sorted(kept)


@pytest.mark.parametrize(("name", "tripped", "sound"), EDGES)
def test_every_finding_has_a_figure_of_the_metric_that_shows_it(name: str, tripped: Evidence, sound: Evidence) -> None:
    found = RULES[name].look(tripped)
    assert found is not None
    shown = panels_of(found.series, tripped.rows)[:2]
    lines = {line.key for panel in shown for line in panel.lines}
    assert lines & set(found.series)
    assert all(panel.curves(tripped.rows, {}) for panel in shown)


def test_near_duplicates_have_their_figure_without_a_test_split() -> None:
    rows = evidence(None, {"near_duplicates": 0.1, "split_overlap": None}).rows
    assert [panel.needs for panel in panels_of(["near_duplicates"], rows)] == ["near_duplicates"]
