"""Pages of studies: what stands on them says what it is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from flatclr import studies
from tests.support import toy_study

KEPT = Path(__file__).parents[2] / "results" / "studies"
INTERVAL = re.compile(r"\d \[-?\d[\d.]*, -?\d[\d.]*\]")


@pytest.mark.parametrize(
    ("brackets", "said"),
    [
        ({}, "Brackets are 95 % intervals over seeds."),
        ({"brackets": "95 % intervals over kinds of runs"}, "Brackets are 95 % intervals over kinds of runs."),
        ({"brackets": ""}, ""),
    ],
)
def test_a_page_says_what_its_study_has_in_brackets(
    brackets: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(studies.STUDIES, "toy", toy_study.__name__)
    monkeypatch.setattr(toy_study, "STUDY", replace(toy_study.STUDY, **brackets))
    page = studies.run("toy", out=tmp_path, device="cpu").page.read_text()
    assert re.findall(r"Brackets[^.]*\.", page) == [said] * bool(said)


@pytest.mark.parametrize("name", studies.STUDIES)
def test_a_kept_page_names_its_brackets_where_it_has_some(name: str) -> None:
    page, brackets = (KEPT / name / "README.md").read_text(encoding="utf-8"), studies.load_study(name).brackets
    if "runs are kept." in page:
        is_whole, has_some = re.search(r"\b(\d+) of \1 runs are kept", page), INTERVAL.search(page)
        assert brackets or not has_some
        assert has_some or not brackets or not is_whole  # the first seeds alone have none
        assert re.findall(r"Brackets are ([^.]*)\.", page) == [brackets] * bool(brackets)
