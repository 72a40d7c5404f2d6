"""Run directories: what they say of a run and of its machine, and that one process writes them, once."""

import errno
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from flatclr import runs
from flatclr.models.saving import load_encoder
from flatclr.runs import RunDirectory, new_directory
from flatclr.training.config import TrainConfig
from flatclr.training.trainer import train
from tests.support.training_worker import config


def test_a_measurement_names_processor_versions_and_commit():
    found = runs.machine()

    assert {"cpu", "cores", "threads", "python", "commit"} < set(found)
    assert found["torch"] == torch.__version__
    assert all(found.values())


def test_results_do_not_make_a_commit_another_and_sources_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = tmp_path / "src" / "flatclr" / "runs.py"
    result = tmp_path / "results" / "table.md"
    for file in (source, result):
        file.parent.mkdir(parents=True)
        file.write_text("one\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    monkeypatch.setattr(runs, "__file__", str(source))

    result.write_text("two\n")
    clean = runs.machine()["commit"]
    source.write_text("two\n")

    assert "dirty" not in clean
    assert runs.machine()["commit"] == f"{clean}-dirty"


def test_a_repository_above_an_installed_package_is_not_taken_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runs, "__file__", str(tmp_path / "site-packages" / "flatclr" / "runs.py"))

    assert runs.machine()["commit"] == "unknown"
    monkeypatch.setenv("FLATCLR_COMMIT", "c0ffee")  # of a copy that was sent somewhere without its history
    assert runs.machine()["commit"] == "c0ffee"


def test_settings_that_cannot_be_written_leave_nothing(tmp_path: Path):
    with pytest.raises(yaml.YAMLError):
        runs.RunDirectory.create(tmp_path / "run", {"rate": np.float64(1.0)})

    assert not (tmp_path / "run").exists()


def test_a_folder_that_leads_nowhere_is_an_error_not_a_search(tmp_path: Path):
    (tmp_path / "runs").symlink_to(tmp_path / "gone" / "away")

    with pytest.raises(FileExistsError):
        runs.new_directory(tmp_path / "runs" / "one")


def test_directories_made_at_once_are_different(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_directory(tmp_path / "runs" / "run"), range(24)))
    assert sorted(path.name for path in made) == sorted(["run", *(f"run-{n}" for n in range(2, 25))])


def test_of_runs_that_start_in_one_directory_one_gets_it(tmp_path: Path) -> None:
    def create(number: int) -> bool:
        try:
            RunDirectory.create(tmp_path, {"number": number})
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(24)))
    assert won.count(True) == 1
    assert RunDirectory(tmp_path).config() == {"number": won.index(True)}


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


def test_a_run_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    run = RunDirectory(train(config(tmp_path / "run", 6)).path)
    (run.path / "checkpoint" / "step-000000006.pt").unlink()
    before = run.metrics()
    with run.locked(), pytest.raises(ValueError, match=r"by one process at a time, got .*run, where one is"):
        train(TrainConfig(), resume=run.path)
    assert run.metrics() == before
    with run.locked():
        pass  # the one that was refused holds nothing


@pytest.mark.parametrize("reason", [errno.EBADF, errno.ENOSYS, errno.ENOLCK], ids=errno.errorcode.get)
def test_a_file_system_without_holds_does_not_keep_a_run_from_starting(
    reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(reason, "no holds here")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert train(config(tmp_path / "run", 2)).steps == 2
