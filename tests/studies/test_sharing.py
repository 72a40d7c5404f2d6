"""Runs that studies share are made once, whatever each study calls them; what a run decides does not wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatclr import studies


@pytest.fixture(autouse=True)
def _studies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sharing", "other"):
        monkeypatch.setitem(studies.STUDIES, name, f"tests.support.{name}_study")


def calls(home: Path) -> list[str]:
    return (home / "pool" / "calls.txt").read_text().split()


def test_a_run_of_another_study_is_found_under_the_own_name_and_not_made_again(tmp_path: Path) -> None:
    first = studies.run("sharing", out=tmp_path, device="cpu")
    made = len(calls(tmp_path))
    other = studies.run("other", out=tmp_path, device="cpu")
    assert other.complete
    assert len(calls(tmp_path)) == made + 2  # the seed and the level that were not there
    assert other.found.one("the same as last").numbers == first.found.one("last").numbers
    assert [kept.run for kept in other.found] == ["the-same-as-last-s0", "last-s0", "last-s1"]
    assert len(set(other.found.values("last", "nats")) | {first.found.one("last").numbers["nats"]}) == 3
    assert studies.run("sharing", out=tmp_path, device="cpu").table == first.table
    assert not (tmp_path / "sharing" / "runs").exists()
    assert len(list((tmp_path / "pool" / "runs").glob("*.json"))) == made + 2
    assert "../pool/runs/" in other.page.read_text()


def test_a_run_that_others_decide_about_comes_in_its_order(tmp_path: Path) -> None:
    studies.run("sharing", out=tmp_path, device="cpu")
    assert [name.partition("-")[0] for name in calls(tmp_path)] == ["first", "decided", "last"]


def test_a_file_of_the_pool_that_holds_other_settings_is_refused(tmp_path: Path) -> None:
    studies.run("sharing", out=tmp_path, device="cpu")
    (path,) = (tmp_path / "pool" / "runs").glob("last-*.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "settings": {"level": 9.0}}))
    with pytest.raises(ValueError, match=r"got one with level 9\.0 instead of 3\.0"):
        studies.run("sharing", out=tmp_path, device="cpu")


def test_the_page_has_the_sentences_and_what_is_empty(tmp_path: Path) -> None:
    page = studies.run("sharing", out=tmp_path, device="cpu", minutes=1e-9).page.read_text()
    assert "## What holds, what does not\n\n1. It not run." in page
    assert "## Empty cells" in page
    assert "`flatclr study sharing`" in page
    page = studies.run("sharing", out=tmp_path, device="cpu").page.read_text()
    assert "1. It held." in page
    assert "## Empty cells" not in page


def test_the_command_of_an_empty_cell_fills_the_page_that_it_stands_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = studies.run("sharing", out="here", device="cpu", minutes=1e-9).page.read_text()
    assert "`flatclr study sharing --out here`" in page
