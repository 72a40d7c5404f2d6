"""The page of a report says what the run's folder says, whatever is missing from it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from flatclr.doctor import Diagnosis, Finding
from flatclr.evaluation.intervals import Score
from flatclr.evaluation.results import Evaluation, Row, write_results
from flatclr.report.panels import PANELS
from tests.support.reports import ROWS, Elements, evaluation_row, log_row, new_run, only, page_of

MOST_BYTES = 5_000_000


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a run with everything in its metrics and markup in its settings."""
    settings = {"data": "<script>alert(1)</script>", "views": {"flip_probability": 0.0}}
    run = new_run(tmp_path_factory.mktemp("runs") / "a<b>", ROWS, **settings)
    run.note({"pairing": "two_view", "graph": False, "samples": 60_000, "test_samples": 400, "parameters": 11_000_000})
    return page_of(run)


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


def shown(page: str) -> str:
    """What a person reads, in one line."""
    body = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def test_the_page_is_whole_and_reaches_for_nothing_outside_itself(page: str) -> None:
    elements = Elements(page).found
    assert {tag for tag, _ in elements}.isdisjoint({"iframe", "image", "object"})
    outside = {attributes.get(name) for _, attributes in elements for name in ("src", "href")} - {None}
    assert {address for address in outside if not str(address).startswith("data:")} == set()
    policy = next(a["content"] for tag, a in elements if tag == "meta" and a.get("http-equiv"))
    assert "default-src 'none'" in str(policy)
    assert "connect-src 'none'" in str(policy)
    assert len(page.encode()) < MOST_BYTES


def test_the_library_of_figures_is_inside_and_unpacks(page: str) -> None:
    packed = re.search(r'id="plotly">([^<]*)</script>', page)
    assert packed is not None
    assert b"plotly.js v" in gzip.decompress(base64.b64decode(packed[1]))[:200]


def test_every_panel_has_a_place_and_its_curves(page: str) -> None:
    places = {attributes["data-panel"] for _, attributes in Elements(page).found if "data-panel" in attributes}
    assert places == {panel.needs for panel in PANELS} == set(data_of(page)["panels"])
    assert data_of(page)["panels"]["mi_nats"]["curves"][0]["y"] == [2.1, 2.2]


def test_the_last_evaluation_stands_beside_the_untrained_encoder_with_intervals(page: str) -> None:
    assert "untrained step 20 kNN accuracy 75.3 % [70.9, 79.3] 81.2 % [77.1, 84.8]" in shown(page)
    assert "effective rank 40.2 51.5" in shown(page)


def test_the_summary_says_how_many_images_and_views_a_second_took(page: str) -> None:
    assert "20 steps, 1,015 images/s, 8,120 views/s" in shown(page)


def test_settings_are_escaped_and_as_the_run_resolved_them(page: str) -> None:
    text = shown(page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "a&lt;b&gt;" in text
    assert "pairing two_view" in text
    assert "graph false" in text
    assert f"torch {torch.__version__}" in text
    assert "60,000 samples" in text
    assert "11.0 M parameters" in text


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", [only(row, "loss", "knn") for row in ROWS])
    assert page_of(run) == page_of(run)


def test_without_an_untrained_row_the_last_evaluation_stands_alone(tmp_path: Path) -> None:
    rows = [only(evaluation_row(step, knn), "knn") for step, knn in ((5, 0.5), (9, 0.625))]
    assert "In training step 9 kNN accuracy 62.5 %" in shown(page_of(new_run(tmp_path / "run", rows)))


def test_alarms_and_bad_steps_are_counted_over_the_logged_steps(page: str, tmp_path: Path) -> None:
    assert "beta was at a clamp" not in page
    rows = [log_row(10), log_row(20, beta_clamped=True), log_row(30, beta_clamped=True, bad_steps=3)]
    loud = page_of(new_run(tmp_path / "run", [only(row, "beta_clamped", "collapsed", "bad_steps") for row in rows]))
    assert "At 2 of 3 logged steps, first at step 20, beta was at a clamp" in loud
    assert "the embeddings had collapsed" not in loud
    assert "3 steps were skipped because loss or gradient was not finite" in loud


def test_a_run_says_whether_it_is_at_work_or_finished(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", [only(row) for row in ROWS])
    assert "run not finished" in shown(page_of(run))
    with run.locked():
        assert "run running" in shown(page_of(run))
    (run.path / "encoder.safetensors").touch()
    assert "run finished" in shown(page_of(run))


def test_findings_stand_on_top_each_with_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding(
        "saturated", "Bound at log K", 0.4, "4.1 of 4.14 nats", "few negatives", "more", "flatclr train", ("mi_nats",)
    )
    ill = Diagnosis("The batch is too small.", healthy=False, findings=(finding,))
    monkeypatch.setattr("flatclr.report.run_view.examine", lambda path: ill)
    page = page_of(new_run(tmp_path / "run", ROWS))
    assert "The batch is too small. 1. Bound at log K costs about 40% Evidence 4.1 of 4.14 nats" in shown(page)
    assert '<div class="plot small" data-panel="mi_nats">' in page


def test_what_flatclr_eval_found_stands_beside_random_and_published_numbers(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", [])
    scores = {"trained": Score(0.81, 0.78, 0.84), "random": Score(0.4, 0.37, 0.43)}
    rows = [Row("knn", 2, "", "cifar10", "output", weights, "top1", {"top1": s}) for weights, s in scores.items()]
    write_results(run.path / "evaluation", Evaluation("run", "0" * 64, tuple(rows)))
    text = shown(page_of(run))
    assert "knn v2 on cifar10: top1 81.0 % [78.0, 84.0] 40.0 % [37.0, 43.0]" in text
    assert "Published for knn on cifar10: 83.2 % (SimCLR, batch 512, 100 epochs; dkobak/simclr-cifar10)." in text


def test_a_run_that_has_just_begun_has_a_page(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", [])
    assert "logged nothing yet" in page_of(run)
    (run.path / "environment.json").unlink()
    (run.path / "pictures.json").write_text("[")
    (run.path / "metrics.jsonl").write_text(
        '{"kind": "log"}\n{"kind": "evaluation"}\n17\n{"step": 10, "kind": "log", "lo'
    )
    Elements(page_of(run))
