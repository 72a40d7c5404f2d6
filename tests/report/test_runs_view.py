"""Several runs are ranked by what they have in common, with seeds taken together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from flatclr.report.page import comparison_page
from flatclr.report.run_view import run_view
from flatclr.report.runs_view import Comparison, mean_of, ranking, records_of, row_of, runs_data, runs_view
from tests.support.reports import Elements, evaluation_row, log_row, new_run

KNN = {("infonce", 0): 0.70, ("infonce", 1): 0.72, ("flatnce", 0): 0.80, ("flatnce", 1): 0.81}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("runs")
    paths = []
    for (objective, seed), knn in KNN.items():
        rows = [log_row(10, loss=2.0 + seed), log_row(20, loss=1.0 + seed), evaluation_row(20, knn, linear=None)]
        paths.append(new_run(folder / f"{objective}-{seed}", rows, objective=objective, seed=seed).path)
    return Comparison.of(records_of(paths))


def test_runs_are_ranked_by_the_result_that_they_have(comparison: Comparison) -> None:
    assert [record.name for record in comparison.records] == ["flatnce-1", "flatnce-0", "infonce-1", "infonce-0"]
    assert comparison.by is not None
    assert comparison.by.name == "kNN"
    assert comparison.differing == ("objective", "seed")
    assert row_of(comparison, comparison.records[0])["kNN"] == 0.81


def test_seeds_are_taken_together_with_student_s_interval(comparison: Comparison) -> None:
    assert comparison.groups == {"objective flatnce": [0, 1], "objective infonce": [2, 3]}
    values = [0.70, 0.72]
    low, high = stats.t.interval(0.95, 1, loc=0.71, scale=stats.sem(values))
    assert mean_of(values).low == pytest.approx(low, rel=1e-4)
    assert mean_of(values).high == pytest.approx(high, rel=1e-4)
    assert math.isnan(mean_of([0.5]).low)
    assert ranking(comparison).startswith("Best by kNN: objective flatnce, with 80.5 % [")
    assert "the intervals overlap" in ranking(comparison)
    averaged = runs_data(comparison)["panels"]["loss"]["averaged"][0]
    assert averaged["x"] == [10, 20]
    assert averaged["y"] == [2.5, 1.5]


def test_every_run_has_its_curve_and_an_axis_for_what_differs(comparison: Comparison) -> None:
    data = runs_data(comparison)
    assert [curve["label"] for curve in data["panels"]["loss"]["curves"]] == [r.name for r in comparison.records]
    first, second = data["parallel"]["dimensions"][:2]
    assert (first["label"], first["ticktext"], first["values"]) == ("objective", ["flatnce", "infonce"], [0, 0, 1, 1])
    assert (second["label"], second["ticktext"]) == ("seed", ["0", "1"])
    assert data["parallel"]["values"] == [81.0, 80.0, 72.0, 70.0]
    only = runs_data(comparison, shown=["infonce-0"])
    assert [curve["run"] for curve in only["panels"]["loss"]["curves"]] == [3]


def test_the_page_of_several_runs_is_whole(comparison: Comparison) -> None:
    page = comparison_page(comparison, "runs")
    Elements(page)
    assert "Settings that differ: objective, seed." in page
    assert len(page.encode()) < 5_000_000


def test_runs_that_have_measured_nothing_have_a_page_without_a_ranking(tmp_path: Path) -> None:
    paths = [new_run(tmp_path / name, [], seed=seed).path for seed, name in enumerate("ab")]
    comparison = Comparison.of(records_of(paths))
    assert comparison.by is None
    assert runs_view(comparison)["ranking"] == ""
    assert runs_data(comparison)["parallel"] is None
    Elements(comparison_page(comparison, "runs"))


def test_captions_speak_of_a_band_where_one_is_drawn(comparison: Comparison) -> None:
    def captions(groups: list[dict[str, Any]]) -> str:
        return " ".join(panel["caption"] for group in groups for panel in group["panels"])

    assert "band" not in captions(runs_view(comparison)["groups"])
    assert "The band is the 95 % interval." in captions(run_view(comparison.records[0])["groups"])
