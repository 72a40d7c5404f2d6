"""Training runs of a study stop when time is up and go on from their checkpoint; their curves are those of the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flatclr.runs import RunDirectory
from flatclr.studies import Found, Job, Plan
from flatclr.studies import training_runs as module
from flatclr.studies.execution import UNFINISHED, Site, make
from flatclr.studies.experiments import gradient_noise
from flatclr.studies.training_runs import (
    ACCURACIES,
    QUICK_IMAGES,
    data_of,
    located,
    measure,
    measure_untrained,
    training_run,
    untrained,
)
from flatclr.training.errors import DivergedError, TrainingInterruptedError, TrainingStoppedError
from flatclr.training.stopping import StopRequest


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
    ended = make(run, site, StopRequest())
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


def test_a_run_of_a_study_says_nothing_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The study tells which runs have ended; lines of several at once would be mixed."""
    measure(Job(quick_run().settings, 0, "cpu", tmp_path))
    assert capsys.readouterr() == ("", "")


def test_the_run_of_gradient_noise_says_nothing_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = gradient_noise.train

    def only_trained(*args: object, **options: object) -> None:
        train(*args, **options)  # type: ignore[arg-type]
        raise DivergedError("enough for a test")

    monkeypatch.setattr(gradient_noise, "train", only_trained)
    (run,) = gradient_noise.plan(Plan(range(1), True, Found(), {}))
    with pytest.raises(DivergedError):
        run.measure(Job(run.settings, 0, "cpu", tmp_path))
    assert capsys.readouterr() == ("", "")


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


@pytest.mark.parametrize("diverges", [True, False], ids=["not finite", "no memory"])
def test_only_a_loss_that_is_not_finite_is_a_result(
    diverges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that found too little memory beside others says nothing of its objective, and is made again."""
    run = training_run("a", 0, {"objective": "infonce", "temperature": 0.5}, quick=True, protocols=["knn"])
    kept, site = tmp_path / "runs" / f"{run.name}.json", Site(tmp_path, "cpu", 1, None, {})
    train = module.train

    def stopped(*args: object, **options: object) -> None:
        train(*args, **options)  # type: ignore[arg-type]
        raise (DivergedError if diverges else TrainingStoppedError)("it stopped")

    monkeypatch.setattr(module, "train", stopped)
    ended = make(run, site, StopRequest())
    assert ended.problem == ("" if diverges else "it stopped")
    assert kept.exists() == diverges
    if diverges:
        assert '"stopped": "it stopped"' in kept.read_text()


def test_a_diverging_objective_ends_as_a_result(tmp_path: Path) -> None:
    config = {"objective": "fmicl", "objective_options": {"divergence": "js", "kernel": "raw_cosine"}}
    run = training_run("a", 0, {**config, "ess_target": None, "max_bad_steps": 2}, quick=True, protocols=["knn"])
    ended = make(run, Site(tmp_path, "cpu", 1, None, {}), StopRequest())
    assert ended.problem == ""
    assert "losses and gradients must be finite" in (tmp_path / "runs" / f"{run.name}.json").read_text()


def test_accuracies_that_take_long_are_kept_one_by_one_and_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = training_run("a", 0, {"objective": "infonce", "temperature": 0.5}, quick=True)
    job = Job({**run.settings, "protocols": ["knn", "finetune"]}, 0, "cpu", tmp_path)
    evaluate, asked = module.evaluate, []

    def watched(encoder: object, data: object, protocols: list[str], **options: object) -> object:
        asked.append(protocols)
        if protocols == ["finetune"] and asked.count(protocols) == 1:
            job.stop.ask("a test")
        return evaluate(encoder, data, protocols, **options)

    monkeypatch.setattr(module, "evaluate", watched)
    with pytest.raises(
        TrainingInterruptedError, match=r"the evaluation was stopped by a test; what is measured is kept"
    ):
        measure(job)
    assert (tmp_path / ACCURACIES).exists()
    again = measure(Job(job.settings, 0, "cpu", tmp_path))
    assert asked == [["knn"], ["finetune"], ["finetune"]]
    assert {"knn", "finetune"} <= set(again)


def test_accuracies_that_were_kept_at_other_settings_do_not_count(tmp_path: Path) -> None:
    run = untrained(training_run("a", 0, {"objective": "infonce", "temperature": 0.5}, quick=True), "untrained")
    first = measure_untrained(Job(run.settings, 0, "cpu", tmp_path))
    path = tmp_path / ACCURACIES
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "scores": {**kept["scores"], "knn": -1.0}}))
    assert measure_untrained(Job(run.settings, 0, "cpu", tmp_path)) == {**first, "knn": -1.0}
    other = {**run.settings, "config": {**run.settings["config"], "embedding": 16}}
    assert measure_untrained(Job(other, 0, "cpu", tmp_path))["knn"] > 0


def test_an_untrained_encoder_is_that_of_the_first_step(tmp_path: Path) -> None:
    run = training_run("a", 0, {"objective": "infonce", "temperature": 0.5, "learning_rate": 1e-12}, quick=True)
    plain = {"encoder_options": {"width": 4, "norm": "none"}}  # without statistics, which steps change at any rate
    run = replace(run, settings={**run.settings, "config": {**run.settings["config"], **plain}})
    first = untrained(run, "untrained")
    assert (first.arm, first.settings, first.digest != run.digest) == ("untrained", run.settings, True)
    numbers = measure_untrained(Job(first.settings, 0, "cpu", tmp_path / "untrained"))
    trained = measure(Job(run.settings, 0, "cpu", tmp_path / "trained"))
    assert {name: trained[name] for name in ("knn", "linear")} == numbers
