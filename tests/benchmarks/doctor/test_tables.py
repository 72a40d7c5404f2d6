"""The pages of the benches say what the rules find in the runs that are kept."""

from __future__ import annotations

import pytest

from benchmarks.doctor.__main__ import BENCHES, FOLDER
from benchmarks.doctor.cases import kept
from benchmarks.doctor.tables import judged, summary
from flatclr.doctor.rules import RULES

JUDGED_ONCE = ("bench_b",)  # by rules that were mended by what it showed


@pytest.mark.parametrize("name", [name for name in BENCHES if (FOLDER / f"{name}.md").exists()])
def test_the_page_of_a_bench_has_its_rates_and_every_run(name: str) -> None:
    records, page = list(kept(FOLDER / f"{name}.jsonl.gz")), (FOLDER / f"{name}.md").read_text()
    assert {record["case"] for record in records} == {case.name for case in BENCHES[name].cases}
    assert all(f"| {record['case']} | {record['fault'] or 'nothing'} |" in page for record in records)
    if name not in JUDGED_ONCE:
        assert summary(judged(records)) in page


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_breaks_every_fault_and_has_ten_sound_runs(name: str) -> None:
    faults = [case.fault for case in BENCHES[name].cases]
    assert set(faults) == {None, *RULES}
    assert faults.count(None) >= 10
    assert len(faults) - faults.count(None) >= 20
