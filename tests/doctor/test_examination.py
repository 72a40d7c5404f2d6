from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flatclr
from flatclr.doctor.examination import diagnose
from flatclr.runs import RunDirectory
from flatclr.training.config import TrainConfig
from tests.support.made_up_run import evidence


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose learning rate is far too low."""
    out = tmp_path_factory.mktemp("stuck") / "run"
    config = TrainConfig(encoder="cnn", encoder_options={"width": 4}, embedding=16, batch_size=16, steps=60, seed=1)
    config = config.changed(learning_rate=1e-7, view_size=14, log_every=5, eval_every=60, eval_samples=400)
    return flatclr.train(config.changed(out=str(out), device="cpu"), progress=False).path


def test_a_run_that_stands_still_is_named_first_with_a_command_that_mends_it(stuck: Path) -> None:
    diagnosis = flatclr.examine(stuck)
    assert not diagnosis.healthy
    assert diagnosis.findings[0].name == "learning_rate_too_low"
    assert "learning rate is too low" in diagnosis.verdict
    command = diagnosis.findings[0].command
    assert command is not None
    assert command.startswith("flatclr train ")
    rate = float(command.split("--learning-rate ")[1].split()[0])
    assert 1e-4 < rate < 1e-2  # from 1e-7
    assert "--batch-size 16" in command
    assert str(stuck) not in command  # another run, in a directory of its own


def test_the_trainer_measures_what_rules_ask_for(stuck: Path) -> None:
    rows = RunDirectory(stuck).metrics()
    measured = {name for row in rows for name in row}
    assert measured >= {"update_ratio", "embedding_std", "head_rank", "held_out_mi_nats", "seen_mi_nats"}
    assert measured >= {"dead_units", "statistics_gap", "pixel_match", "pixel_knn", "near_duplicates", "split_overlap"}


def test_results_and_directories_are_examined_alike(stuck: Path) -> None:
    result = flatclr.training.RunResult(stuck, 60, {})
    assert flatclr.examine(result) == flatclr.examine(str(stuck))


def test_a_sound_run_is_called_so() -> None:
    diagnosis = diagnose(evidence())
    assert diagnosis.healthy
    assert diagnosis.findings == ()
    assert diagnosis.verdict == "Nothing is wrong that the metrics of 300 steps can show."


def test_what_a_fault_brings_about_comes_after_it() -> None:
    thrown_about = {"update_ratio": 0.5, "embedding_std": 0.01, "ess": 1.0}
    found = diagnose(evidence(thrown_about, {"head_rank": 1.0})).findings
    names = [finding.name for finding in found]
    assert names[:2] == ["learning_rate_too_high", "collapse"]
    assert names.index("collapse") < names.index("dimensional_collapse")
    costs = [finding.cost for finding in found]
    assert costs == sorted(costs, reverse=True)


def test_what_views_that_share_nothing_bring_about_comes_after_them() -> None:
    nothing_in_common = {"pool_mi_best_nats": 0.01, "pixel_match": 0.002, "head_rank": 1.0}
    found = diagnose(evidence({"embedding_std": 0.04, "ess": 0.97, "uniformity": -0.1}, nothing_in_common)).findings
    assert [finding.name for finding in found] == ["views_too_strong", "collapse", "dimensional_collapse"]


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"knn_samples": 50}, "evaluations are too small to tell, which costs nothing of what was learnt"),
        ({"split_overlap": 0.5}, "test images are training images, which costs nothing of what was learnt"),
        ({"data_wait_share": 0.6}, "the device waits for data, which costs 60% of the time."),
    ],
)
def test_what_takes_nothing_from_learning_is_not_said_to(metrics: dict[str, Any], said: str) -> None:
    diagnosis = diagnose(evidence(metrics, metrics))
    assert diagnosis.verdict.startswith(f"One thing is wrong: {said}")
    assert "could have learnt" not in diagnosis.verdict
    assert diagnosis.findings[0].costs in diagnosis._repr_html_()


def test_a_diagnosis_is_a_table_a_dict_and_a_page() -> None:
    diagnosis = diagnose(evidence({"saturation": 0.95}))
    assert diagnosis.to_frame()["name"].tolist() == ["bound_saturated"]
    assert diagnosis.to_dict()["findings"][0]["series"] == ["saturation", "mi_nats", "ceiling_nats"]
    assert "The bound is at its ceiling" in diagnosis._repr_html_()
    assert "<table" not in diagnose(evidence())._repr_html_()


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({}, ValueError, "either a run or metrics .* got neither"),
        ({"source": "x", "metrics": "y"}, ValueError, "got both"),
        ({"source": "gone"}, FileNotFoundError, "must hold config.yaml"),
        ({"metrics": []}, ValueError, "got nothing; rename one"),
        ({"metrics": [1]}, TypeError, "rows by name"),
        ({"metrics": [{"loss": 1.0}], "negatives": 0}, ValueError, "negatives must be a whole number >= 1, got 0"),
        ({"embeddings": [[1.0, 2.0]]}, ValueError, r"got \[1, 2\]"),
        ({"embeddings": [[1.0, float("nan")]] * 5}, ValueError, "must be finite"),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        flatclr.examine(**arguments)


def test_a_run_without_metrics_is_refused(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", TrainConfig().to_dict())
    with pytest.raises(ValueError, match="must have metrics"):
        flatclr.examine(tmp_path / "run")
