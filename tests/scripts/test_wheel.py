"""The wheel holds the package, all of it and nothing else."""

import zipfile
from pathlib import Path

import pytest
import yaml

from scripts.wheel import ROOT, build, problems


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without isolation: nothing is downloaded, and the tree is left as it is."""
    (built,) = build(tmp_path_factory.mktemp("dist"), kinds=("wheel",))
    return built


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert problems(wheel) == []


def test_a_wheel_that_lacks_a_file_or_has_another_is_noticed(wheel: Path, tmp_path: Path) -> None:
    changed = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(changed, "w") as other:
        for name in whole.namelist():
            if name != "flatclr/py.typed":
                other.writestr(name, whole.read(name))
        other.writestr("tests/secret.py", "")
    assert problems(changed) == ["flatclr/py.typed is missing", "tests/secret.py does not belong there"]


def test_the_release_publishes_only_what_was_audited_and_tried() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    build_job, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    steps = " ".join(step.get("run", "") for step in build_job["steps"])
    assert all(tool in steps for tool in ("python -m build", "pip-audit", "cyclonedx-py", "SMOKE"))
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}
