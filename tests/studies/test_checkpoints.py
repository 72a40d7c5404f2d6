"""Gauges beside accuracies are read as the run wrote them, from run directories and from what studies keep."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from flatclr.studies.checkpoints import Course, course_of_study, courses_of_runs, courses_of_studies
from flatclr.studies.experiments.model_choice import gain_over_last, lost_by_choice, within_run

LOGS = [{"step": step, "alignment": 0.5, "uniformity": -float(step), "ess": 0.25} for step in range(1, 11)]
EVALUATIONS = [
    {"step": step, "epoch": step / 2, "knn": 0.1 * step, "pool_mi_best_nats": 5.0 - step, "effective_rank": 2.0 * step}
    for step in (2, 4, 6, 8, 10)
]
CONFIG = {"objective": "infonce", "eval_samples": 100}


def courses(numbers: dict[str, Any], **settings: Any) -> list[Course]:
    base = {"config": CONFIG, "data": "cifar10", "recipe": "small", "held_out": False}
    return list(course_of_study({**base, **settings}, numbers))


def test_a_gauge_of_batches_is_the_mean_since_the_evaluation_before() -> None:
    (course,) = courses({"log": LOGS, "evaluations": EVALUATIONS})
    second = course.checkpoints[1]
    assert second.gauges == {"pool MI": 1.0, "RankMe": 8.0, "alignment + uniformity": 3.0, "ESS": 0.25}
    assert (second.epoch, second.knn) == (2.0, 0.4)


def test_a_gauge_that_rises_with_accuracy_ranks_it_and_one_that_falls_chooses_the_worst() -> None:
    some = courses({"log": LOGS, "evaluations": EVALUATIONS})
    assert within_run(some, "RankMe").value == 1.0
    assert within_run(some, "pool MI").value == -1.0
    assert within_run(some, "ESS").value == 0.0  # it does not move
    assert gain_over_last(some, "RankMe").value == 0.0
    assert gain_over_last(some, "pool MI").value == pytest.approx(-80.0)
    assert gain_over_last(some, "ESS").value == 0.0  # of equals the later


def test_what_is_lost_by_choosing_a_run_is_measured_from_the_best() -> None:
    better = [{**row, "knn": row["knn"] - 0.05, "effective_rank": 100.0} for row in EVALUATIONS]
    some = courses({"log": LOGS, "evaluations": EVALUATIONS}) + courses(
        {"log": LOGS, "evaluations": better}, config={**CONFIG, "objective": "flatnce"}
    )
    assert lost_by_choice(some, "RankMe") == pytest.approx(5.0)


def test_runs_that_learn_from_labels_or_have_no_accuracy_are_left_out() -> None:
    numbers = {"log": LOGS, "evaluations": EVALUATIONS}
    assert courses(numbers, config={**CONFIG, "positives": "class"}) == []
    assert courses({"log": LOGS, "evaluations": [{"step": 2, "epoch": 1.0}]}) == []
    assert courses({"nats": 1.0}) == []


def test_run_directories_are_read_packed_or_not_and_seeds_are_of_one_kind(tmp_path: Path) -> None:
    rows = [{**row, "kind": "log"} for row in LOGS] + [{**row, "kind": "evaluation"} for row in EVALUATIONS]
    rows.sort(key=lambda row: row["step"])
    for seed, name in enumerate(("plain", "packed")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "data": "held-out.npz", "seed": seed}))
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    packed = tmp_path / "packed" / "metrics.jsonl"
    (tmp_path / "packed" / "metrics.jsonl.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    one, other = courses_of_runs(tmp_path)
    assert one == other
    assert (one.data, one.alike) == ("cifar10", "cifar10, 100 samples held out, 5 epochs")
    assert len(one.checkpoints) == len(EVALUATIONS)


def test_studies_are_read_but_for_the_one_that_asks(tmp_path: Path) -> None:
    numbers = {"log": LOGS, "evaluations": EVALUATIONS}
    settings = {"config": CONFIG, "data": "embedded", "recipe": "small", "held_out": False}
    for name in ("one", "own"):
        (tmp_path / name / "runs").mkdir(parents=True)
        (tmp_path / name / "runs" / "a-s0.json").write_text(json.dumps({"settings": settings, "numbers": numbers}))
    (course,) = courses_of_studies(tmp_path, but="own")
    assert course.data == "embedded"
    shutil.rmtree(tmp_path / "one")
    assert list(courses_of_studies(tmp_path, but="own")) == []
