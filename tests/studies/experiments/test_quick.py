"""Every study runs from its plan to its page at its smallest size."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatclr import studies

CHEAP = ("f-information", "cost")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in CHEAP else pytest.mark.slow) for name in studies.STUDIES]
)
def test_a_study_runs_quickly_from_plan_to_page(name: str, tmp_path: Path) -> None:
    result = studies.run(name, quick=True, out=tmp_path, device="cpu")
    assert result.failed == {}
    assert result.complete
    assert len(result.verdicts) == len(result.study.claims) >= 1
    assert all(verdict.word in ("held", "did not hold", "cannot be told here") for verdict in result.verdicts)
    assert result.table
    assert result.figures
    for claim in result.study.claims:
        assert claim.statement in result.page.read_text()
    assert result.study.changed in result.page.read_text()
