"""Optional packages: what is said where one is missing, and where one is there and broken."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from flatclr.extras import EXTRAS, needed

ROOT = Path(__file__).parents[1]


def test_a_package_that_is_not_installed_is_told_from_one_that_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    (tmp_path / "timm.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(tmp_path)

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r'x needs datasets, which is not installed; pip install "flatclr\[hub\]"\.$'):
        needed("datasets", by="x")
    with pytest.raises(
        ImportError, match=r"installed but broken \(operator torchvision::nms does not exist\); install"
    ):
        needed("torchvision", by="x")
    with pytest.raises(
        ImportError, match=r"broken \(No module named 'not_there_at_all'\); install timm again, or take another\.$"
    ):
        needed("timm", by="x", otherwise=", or take another")
    (tmp_path / "lightning.py").write_text("import torchvision")
    with pytest.raises(ImportError, match=r"lightning, .* install a torchvision built for the torch that is here\.$"):
        needed("lightning", by="x")


def test_every_extra_that_a_hint_names_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    hinted = {name for file in files for name in re.findall(r"flatclr\[([\w-]+)\]", file.read_text())}
    extras = set(project["optional-dependencies"])

    assert hinted | set(EXTRAS.values()) <= extras
    assert not any("_" in name for name in extras)  # pip before 23.3 does not find these


def test_readme_names_every_extra_that_users_install() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for_us = {"dev", "integrations", "rivals"}
    other_names = {"digits", "mi"}  # of sklearn and parquet, by which they were called before
    listed = set(re.findall(r"`([\w-]+)`", (ROOT / "README.md").read_text().partition("## Install")[2]))

    assert set(project["optional-dependencies"]) - for_us - other_names <= listed


def test_what_mi_needs_for_csv_comes_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert {"scipy", "pandas"} <= {re.split("[<>=]", name)[0] for name in project["dependencies"]}


def test_make_test_slow_installs_ray() -> None:
    assert '".[integrations,ray]"' in (ROOT / "Makefile").read_text(), "tests/training/test_ray.py would be skipped"
    assert re.search(r"^ray==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
