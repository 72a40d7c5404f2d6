"""What a run directory says about the machine it was made on."""

from pathlib import Path

import pytest
import torch

from flatclr import runs


def test_a_measurement_names_processor_versions_and_commit():
    found = runs.machine()

    assert {"cpu", "cores", "threads", "python", "commit"} < set(found)
    assert found["torch"] == torch.__version__
    assert all(found.values())


def test_a_repository_above_an_installed_package_is_not_taken_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runs, "__file__", str(tmp_path / "site-packages" / "flatclr" / "runs.py"))

    assert runs.machine()["commit"] == "unknown"
