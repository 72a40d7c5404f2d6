"""Training runs of a study stop when time is up and go on from their checkpoint; their curves are those of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatclr.runs import RunDirectory
from flatclr.studies import Job
from flatclr.studies.execution import UNFINISHED, Site, make
from flatclr.studies.training_runs import QUICK_IMAGES, data_of, located, measure, training_run
from flatclr.training.errors import TrainingInterruptedError


def quick_run(**config: object) -> Job:
    run = training_run("a", 0, {"objective": "infonce", "temperature": 0.5, **config}, quick=True, protocols=["knn"])
    return Job(run.settings, 0, "cpu", Path())


def test_a_run_that_is_stopped_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    run = training_run("a", 0, {"objective": "infonce", "temperature": 0.5}, quick=True, protocols=["knn"])
    job = Job(run.settings, 0, "cpu", tmp_path / "work")
    job.stop.ask("a test")
    with pytest.raises(TrainingInterruptedError):
        measure(job)
    site = Site(tmp_path / "home", "cpu", 1, None, {"commit": "none"})
    ended = make(run, site)
    assert ended.problem == ""
    assert not (tmp_path / "home" / UNFINISHED).exists()  # checkpoints go with the end of a run
    assert (tmp_path / "home" / "runs" / f"{run.name}.json").exists()


def test_curves_are_those_of_the_metrics(tmp_path: Path) -> None:
    job = quick_run()
    numbers = measure(Job(job.settings, 0, "cpu", tmp_path))
    rows = RunDirectory.open(tmp_path / "run").metrics()
    assert [row["step"] for row in numbers["log"]] == [row["step"] for row in rows if row["kind"] == "log"]
    assert numbers["log"][-1]["ess_with_positive"] == rows[-2]["ess_with_positive"]
    assert numbers["evaluations"][-1]["knn"] == [row for row in rows if row["kind"] == "evaluation"][-1]["knn"]
    assert 0 <= numbers["knn"] <= 1


def test_held_out_images_are_training_images_that_are_not_trained_on() -> None:
    settings = training_run("a", 0, {}, quick=True, held_out=True).settings
    held, whole = data_of(settings), data_of({**settings, "held_out": False})
    assert held is not None
    assert whole is not None
    assert len(held.train) + len(held.test) == len(whole.train) == QUICK_IMAGES  # type: ignore[arg-type]
    of_training = {bytes(image.numpy()) for image in whole.train.images}  # type: ignore[union-attr]
    assert all(bytes(image.numpy()) in of_training for image in held.test.images)  # type: ignore[union-attr]


def test_data_are_found_where_named_datasets_are_and_kept_by_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "digits.npz").touch()
    monkeypatch.setenv("FLATCLR_DATA", str(tmp_path))
    assert located("digits.npz") == str(tmp_path / "digits.npz")
    assert located("cifar10") == "cifar10"
    assert located("nowhere") == "nowhere"
