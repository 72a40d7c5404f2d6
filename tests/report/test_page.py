"""The page of a report says what the metrics say, whatever is missing from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from flatclr.report.figures import PANELS
from tests.support.reports import ROWS, Elements, evaluation_row, log_row, new_run, only, page_of


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


def test_the_summary_says_how_many_images_and_views_a_second_took(page: str) -> None:
    assert "20 steps, 1,015 images/s, 8,120 views/s, not finished" in page  # medians of the log


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


def test_a_run_that_has_just_begun_has_a_page(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", [])
    assert "logged nothing yet" in page_of(run)
    (run.path / "environment.json").unlink()
    (run.path / "metrics.jsonl").write_text(
        '{"kind": "log"}\n{"kind": "evaluation"}\n17\n{"step": 10, "kind": "log", "lo'
    )
    Elements(page_of(run))
