"""Run directories, and what they say about the machine they were made on."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from flatclr import runs
from flatclr.runs import RunDirectory, new_directory


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
