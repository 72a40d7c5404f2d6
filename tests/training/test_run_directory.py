"""A run directory says what happened, and is not written twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from flatclr.models.saving import load_encoder
from flatclr.runs import RunDirectory
from flatclr.training.config import TrainConfig
from flatclr.training.trainer import train
from tests.support.training_worker import config


def test_a_run_directory_says_what_happened(tmp_path: Path) -> None:
    result = train(config(tmp_path / "run", 10, eval_every=5, log_every=5))
    run = RunDirectory.open(result.path)
    assert TrainConfig.from_dict(run.config()).steps == 10
    assert json.loads((result.path / "environment.json").read_text())["torch"] == torch.__version__
    rows = run.metrics()
    assert [row["step"] for row in rows if row["kind"] == "log"] == [5, 10]
    log = next(row for row in rows if row["kind"] == "log")
    gauges = "loss mi_nats ceiling_nats saturation ess ess_quantiles beta alignment uniformity gradient_norm"
    assert {*gauges.split(), "images_per_second", "views_per_second"} <= log.keys()
    evaluation = [row for row in rows if row["kind"] == "evaluation"][-1]
    measured = "knn effective_rank pool_mi_nats pool_mi_best_nats collision_rate gradient_snr"
    assert set(measured.split()) <= evaluation.keys()
    encoder = load_encoder(result.path)
    assert encoder(torch.rand(2, 1, 28, 28)).shape[0] == 2


def test_an_output_directory_with_a_run_in_it_is_refused(tmp_path: Path) -> None:
    train(config(tmp_path / "run", 2))
    with pytest.raises(FileExistsError, match="must not hold a run yet"):
        train(config(tmp_path / "run", 2))


def test_a_batch_larger_than_the_data_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"batch_size must be .* <= 10000, got 20000"):
        train(config(tmp_path / "run", 2, batch_size=20_000))
    assert not (tmp_path / "run").exists()


def test_damaged_files_of_a_run_are_named(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {"steps": 3})
    (run.path / "environment.json").write_text("{")
    assert run.differences() == [f"{run.path / 'environment.json'} is damaged"]
    (run.path / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    assert run.metrics() == []
    for damage in (b"a: [", b"\xff\xfe"):
        (run.path / "config.yaml").write_bytes(damage)
        with pytest.raises(ValueError, match=r"config\.yaml must hold named settings, got a damaged file; restore it"):
            run.config()


def test_a_file_in_the_place_of_the_output_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(FileExistsError, match=r"must not be a file, got .*taken; choose another --out"):
        train(config(tmp_path / "taken", 2))
