"""The report: a page and pictures that say what the metrics say, whatever is missing from them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flatclr.cli.main import main
from flatclr.plots import inline_svg
from flatclr.report.figures import ACCURACY, BOUND, ESS, PANELS, Panel, available, draw_panels, series
from flatclr.report.page import write_report
from flatclr.runs import RunDirectory
from flatclr.training.config import TrainConfig


def log_row(step: int, **changed: Any) -> dict[str, Any]:
    row = {
        "step": step, "kind": "log", "loss": 3 / step, "mi_nats": 2.0 + step / 100, "ceiling_nats": 4.14,
        "ess": 0.3 - step / 1000, "ess_quantiles": [0.1, 0.25, 0.4 + step / 1000], "beta": 9.0 + step,
        "alignment": 0.5, "uniformity": -2.0, "gradient_norm": 1.5, "bad_steps": 0,
        "beta_clamped": False, "collapsed": False, "data_wait_share": 0.2,
    }  # fmt: skip
    return row | changed


def evaluation_row(step: int, knn: float, **changed: Any) -> dict[str, Any]:
    row = {
        "step": step, "kind": "evaluation", "knn": knn, "effective_rank": 40.25, "pool_mi_nats": 3.125,
        "pool_mi_best_nats": 3.5, "pool_ceiling_nats": 8.07, "collision_rate": 0.1, "retrieval_at_1": 0.5,
        "gradient_snr": 0.3,
    }  # fmt: skip
    return row | changed


ROWS = [evaluation_row(0, 0.7531), log_row(10), log_row(20), evaluation_row(20, 0.8124, effective_rank=51.5)]


def new_run(path: Path, rows: list[dict[str, Any]], **settings: Any) -> RunDirectory:
    run = RunDirectory.create(path, TrainConfig().to_dict() | settings)
    for row in rows:
        run.append_metrics(row)
    return run


def only(row: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A row with these keys alone; fewer figures also draw faster."""
    return {key: row[key] for key in ("kind", "step", *keys) if key in row}


def page_of(run: RunDirectory) -> str:
    return write_report(run.path).read_text()


class Elements(HTMLParser):
    """Every element with its attributes; fails on a page whose tags do not nest."""

    VOID = ("meta", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a run with everything in its metrics and markup in its settings."""
    settings = {"data": "<script>alert(1)</script>", "views": {"flip_probability": 0.0}}
    return page_of(new_run(tmp_path_factory.mktemp("runs") / "a<b>", ROWS, **settings))


def test_the_page_is_whole_and_reaches_for_nothing_outside_itself(page: str) -> None:
    elements = Elements(page).found
    assert {tag for tag, _ in elements}.isdisjoint({"script", "link", "img", "iframe", "image"})
    identifiers = {attributes["id"] for _, attributes in elements if "id" in attributes}
    references = re.findall(r"url\(([^)]*)\)", page) + re.findall(r'(?:href|src)="([^"]*)"', page)
    assert references
    assert {reference for reference in references if reference.removeprefix("#") not in identifiers} == set()
    assert "@import" not in page
    assert sum(tag == "svg" for tag, _ in elements) == len(PANELS)


def test_figures_take_the_ink_and_shade_of_the_page(page: str) -> None:
    assert "prefers-color-scheme: dark" in page
    drawn = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert "currentColor" in drawn
    assert not re.search(r"#(1b1f24|e4e7eb|000000|ffffff)", drawn)


def test_the_last_evaluation_stands_beside_the_untrained_encoder(page: str) -> None:
    assert "<th>untrained</th><th>step 20</th>" in page
    assert '<td>kNN accuracy</td><td class="number">75.3%</td><td class="number">81.2%</td>' in page
    assert '<td class="number">40.2</td><td class="number">51.5</td>' in page


def test_settings_and_environment_are_listed_and_escaped(page: str) -> None:
    assert "<td>&lt;script&gt;alert(1)&lt;/script&gt;</td>" in page
    assert "<h1>a&lt;b&gt;</h1>" in page
    assert "<td>views</td><td>{&quot;flip_probability&quot;: 0.0}</td>" in page
    assert "<td>batch_size</td><td>32</td>" in page
    assert f"<td>torch</td><td>{torch.__version__}</td>" in page


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", [only(row, "loss", "knn") for row in ROWS])
    assert page_of(run) == page_of(run)


def test_without_an_untrained_row_the_last_evaluation_stands_alone(tmp_path: Path) -> None:
    rows = [only(evaluation_row(step, knn), "knn") for step, knn in ((5, 0.5), (9, 0.625))]
    page = page_of(new_run(tmp_path / "run", rows))
    assert "<tr><th></th><th>step 9</th></tr>" in page
    assert '<td>kNN accuracy</td><td class="number">62.5%</td></tr>' in page


def test_alarms_and_bad_steps_are_counted_over_the_logged_steps(page: str, tmp_path: Path) -> None:
    assert "No alarm at any of the 2 logged steps." in page
    assert "not finite: 0." in page
    rows = [log_row(10), log_row(20, beta_clamped=True), log_row(30, beta_clamped=True, bad_steps=3)]
    loud = page_of(new_run(tmp_path / "run", [only(row, "beta_clamped", "collapsed", "bad_steps") for row in rows]))
    assert "At 2 of 3 logged steps, first at step 20, beta was at a clamp" in loud
    assert "the embeddings had collapsed" not in loud
    assert "not finite: 3." in loud


def test_a_run_says_whether_it_is_finished(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", [only(row) for row in ROWS])
    assert "20 steps, not finished" in page_of(run)
    (run.path / "encoder.safetensors").touch()
    assert "20 steps, finished" in page_of(run)


def test_every_key_but_the_step_can_do_without_the_others(tmp_path: Path) -> None:
    rows = [only(row, key) for row in ROWS for key in row if key not in ("kind", "step")]
    page = page_of(new_run(tmp_path / "run", rows))
    assert sum(tag == "svg" for tag, _ in Elements(page).found) == len(PANELS)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_without_its_key_or_steps_is_left_out(panel: Panel) -> None:
    keyless = [{key: value for key, value in row.items() if key != panel.needs} for row in ROWS]
    assert available([panel], ROWS) == [panel]
    assert available([panel], keyless) == []
    assert available([panel], [{panel.needs: 1.0}]) == []


def test_a_run_that_has_just_begun_has_a_page(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", [])
    assert "logged nothing yet" in page_of(run)
    (run.path / "environment.json").unlink()
    (run.path / "metrics.jsonl").write_text(
        '{"kind": "log"}\n{"kind": "evaluation"}\n17\n{"step": 10, "kind": "log", "lo'
    )
    Elements(page_of(run))


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


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["flatclr", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_the_command_writes_the_page_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path / "run", [only(row, "loss") for row in ROWS])
    assert call(monkeypatch, "report", run.path) == 0
    assert capsys.readouterr().out == f"report: {run.path / 'report.html'}\n"
    assert call(monkeypatch, "report", run.path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(run.path / "report.html")}
    Elements((run.path / "report.html").read_text())


def test_the_command_refuses_what_is_no_run_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "report", tmp_path) == 2
    error = capsys.readouterr().err
    assert error.startswith("flatclr: a run directory must hold config.yaml")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_training_ends_with_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (
        "--batch-size",
        8,
        "--set",
        "encoder_options={width: 8}",
        "--set",
        "eval_samples=50",
        "--device",
        "cpu",
        "--json",
    )
    assert call(monkeypatch, "train", "--steps", 2, "--out", tmp_path / "run", *settings) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == {"kind": "report", "path": str(tmp_path / "run" / "report.html")}
    assert "2 steps, finished" in (tmp_path / "run" / "report.html").read_text()


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
