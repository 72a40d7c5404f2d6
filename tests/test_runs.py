"""Run directories, and what they say about the machine they were made on."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from flatclr import runs


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
